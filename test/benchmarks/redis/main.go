// Command redis measures limits that are kept in Redis: headgate, other libraries,
// and what a decision must cost at least. It starts a redis-server of its own. Run
// it in the folder above:
//
//	go run ./benchmarks/redis                            # three rounds of a second for each: five minutes
//	go run ./benchmarks/redis -rounds 7                  # the full study
//	go run ./benchmarks/redis -run 'TokenBucket|floor'   # some systems
//	go run ./benchmarks/redis -apart                     # a processor for redis-server, and another for the clients
//	go run ./benchmarks/redis -processes 1,4             # a hot key, shared by processes: three minutes
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A config has the values of the flags.
type config struct {
	rounds   int
	duration time.Duration
	slices   int
	keys     int
	run      *regexp.Regexp
	apart    bool

	processes []int // nil: the systems are compared within one
}

// count sets how many processes there are.
func (c *config) count(text string) error {
	if text == "" {
		return nil
	}
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return fmt.Errorf("-processes %s: %q is not a number of processes", text, word)
		}
		c.processes = append(c.processes, n)
	}
	return nil
}

func main() {
	var c config
	flag.IntVar(&c.rounds, "rounds", 3, "`how often` everything is measured; the medians are reported")
	flag.DurationVar(&c.duration, "duration", time.Second, "how long each system is measured in a round")
	flag.IntVar(&c.slices, "slices", 5, "how many `slices` a round has, in which the systems take turns")
	flag.IntVar(&c.keys, "keys", 100_000, "how many `keys` are drawn from")
	run := flag.String("run", "", "measure only the systems that match this `regexp`")
	flag.BoolVar(&c.apart, "apart", false, "keep redis-server on a processor, and this program on another, with taskset")
	counts := flag.String("processes", "", "instead, measure one hot key that so many `processes` share")
	role := flag.String("serve", "", "used by -processes: the `system` of a process; -addr, -limit and -gap are for it")
	addr := flag.String("addr", "", "")
	n, gap := flag.Int("limit", 0, ""), flag.Duration("gap", 0, "")
	flag.Parse()
	var err error
	c.run, err = regexp.Compile(*run)
	err = errors.Join(err, c.count(*counts))
	if err != nil || flag.NArg() > 0 || c.apart && c.processes != nil || c.rounds < 1 || c.duration <= 0 || c.slices < 1 || c.keys < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	if *role != "" {
		err = serve(ctx, *role, *addr, limit{*n, time.Second}, c.duration, *gap)
	} else {
		err = study(ctx, c)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "\nredis:", err)
		os.Exit(1)
	}
}

// study measures everything and writes the report.
func study(ctx context.Context, c config) (err error) {
	server, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()

	if c.processes != nil {
		lines, err := processes(ctx, c, server, c.processes)
		if err != nil {
			return err
		}
		fmt.Print(table(lines))
		return nil
	}
	if c.apart {
		if err := server.keepApart(ctx); err != nil {
			return err
		}
	}
	b := bench{config: c, server: server}
	if err := b.open(ctx); err != nil {
		return err
	}
	defer b.close()
	if err := b.measure(ctx); err != nil {
		return err
	}
	version, err := server.version(ctx)
	if err != nil {
		return err
	}
	fmt.Print(b.report(version))
	return nil
}
