// Command accuracy measures how often each policy decides wrongly.
//
// It simulates requests of many sources under several kinds of traffic. It compares every verdict
// of every policy with the exact number of events in the period that ends with it. Run it in the
// folder above:
//
//	go run ./benchmarks/accuracy                          # 20 million requests per traffic
//	go run ./benchmarks/accuracy -requests 400000000      # the full study
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

func main() {
	requests := flag.Int("requests", 20_000_000, "about how many `requests` in each traffic")
	sources := flag.Int("sources", 270_000, "how many `sources` send them")
	seed := flag.Uint64("seed", 1, "the same `seed` gives the same report")
	flag.Parse()
	if flag.NArg() > 0 || *requests < 1 || *sources < 1 {
		flag.Usage()
		os.Exit(2)
	}

	var done atomic.Int64
	stop := progress(&done, int64(*requests)*int64(len(traffics)))
	var results []result
	for _, t := range traffics {
		results = append(results, simulate(t, *requests, *sources, *seed, runtime.GOMAXPROCS(0), &done))
	}
	stop()

	fmt.Print(report(results, *requests, *sources, *seed))
}

// progress shows how far the study is, once a second, until stop is called.
func progress(done *atomic.Int64, total int64) (stop func()) {
	start := time.Now()
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				fmt.Fprintf(os.Stderr, "\r%d million requests in %v\x1b[K\n", done.Load()/1e6, time.Since(start).Round(time.Second))
				return
			case <-tick.C:
				n := min(done.Load(), total)
				left := "?"
				if n > 0 {
					spent := time.Since(start)
					left = (time.Duration(float64(spent) * float64(total-n) / float64(n))).Round(time.Second).String()
				}
				fmt.Fprintf(os.Stderr, "\r%3d %%, %s left\x1b[K", 100*n/total, left)
			}
		}
	}()
	return func() { close(quit); <-gone }
}
