// Command overhead measures the cost of limits for a server, over real sockets. The servers are Gin
// and Echo without a limit, with headgate, with Echo's own limiter and with other libraries. Each
// is a process of its own. The load comes from wrk, or from hey where wrk is not installed. Run it
// in the folder above:
//
//	go run ./benchmarks/overhead                  # seven rounds of three seconds each: three minutes
//	go run ./benchmarks/overhead -run 'Echo'      # some servers
//
// On Linux with taskset, servers have the first processor and the load has the others.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"
)

// A config has the values of the flags.
type config struct {
	rounds      int
	duration    time.Duration
	connections int
	run         *regexp.Regexp
	load        load
}

func main() {
	if serveIfChild() {
		return
	}
	var c config
	flag.IntVar(&c.rounds, "rounds", 7, "`how often` everything is measured; the medians are reported")
	flag.DurationVar(&c.duration, "duration", 3*time.Second, "how long each measurement takes, in whole seconds")
	flag.IntVar(&c.connections, "connections", 64, "the `number` of connections of the load")
	run := flag.String("run", "", "measure only the servers whose name matches this `regexp`")
	flag.Parse()
	var err error
	c.run, err = regexp.Compile(*run)
	if err != nil || flag.NArg() > 0 || c.rounds < 1 || c.duration < time.Second || c.connections < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var found []*contestant
	if c.load, err = newLoad(ctx); err == nil {
		found, err = study(ctx, c)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\noverhead:", err)
		os.Exit(1)
	}
	fmt.Print(report(c, found))
}
