// Command memory measures limits that are kept in the process: headgate and other libraries
// at the same work. Run it in the folder above:
//
//	go run ./benchmarks/memory                                # all: a quarter of an hour
//	go run ./benchmarks/memory -run 'TokenBucket|go-limiter'  # some systems
//	go run ./benchmarks/memory -case 'hot'                    # some of the work
//
// The systems take turns, a slice of some decisions each. Keys are IPv6 addresses, as text.
// Rates have a fraction: 700,000,000 in 1,000 seconds is no whole number of microseconds for
// each unit.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
)

func main() {
	var c config
	flag.IntVar(&c.rounds, "rounds", 8, "how many `rounds`; their medians and ranges are reported")
	flag.IntVar(&c.slices, "slices", 100, "how many `slices` each system has in a round")
	flag.IntVar(&c.keys, "keys", 1_000_000, "how many `keys` there are, where there are many")
	run := flag.String("run", "", "measure only the systems that match this `regexp`")
	work := flag.String("case", "", "measure only the work that matches this `regexp`")
	flag.Parse()
	var errRun, errWork error
	c.run, errRun = regexp.Compile(*run)
	c.work, errWork = regexp.Compile(*work)
	if errRun != nil || errWork != nil || flag.NArg() > 0 || c.rounds < 1 || c.slices < 1 || c.keys < 1 {
		flag.Usage()
		os.Exit(2)
	}
	fmt.Printf("%s, medians of %d rounds, and their ranges\n", runtime.Version(), c.rounds)
	if err := c.measure(); err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}
