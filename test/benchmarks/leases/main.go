// Leases measures limits of 100,000 a second that four processes share through a distant Redis,
// with leases and without. It shows how much is admitted, how much of it by leases, and the number
// of calls.
//
//	go run ./benchmarks/leases
//
// It starts a redis-server and a proxy that delays what passes. Each process asks for its part of
// twice the limit. It prints a table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

const (
	limit     = 100_000 // units a second
	demand    = 2       // times the limit
	processes = 4
)

// trips are the round trips that are measured, beside what the machine itself takes.
var trips = []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond}

func main() {
	serve := flag.String("serve", "", "be one of the processes, with the limit of this `name`")
	addr := flag.String("addr", "", "the `address` of the proxy, for -serve")
	duration := flag.Duration("duration", 4*time.Second, "of each measurement")
	only := flag.String("only", "", "measure the limits with this `text` in their names")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *serve != "" {
		err = ask(ctx, *serve, *addr, *duration)
	} else {
		err = measure(ctx, *duration, *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "leases:", err)
		os.Exit(1)
	}
}

// A line is what all processes did under one limit, at one round trip.
type line struct {
	system string
	trip   time.Duration
	share
	calls   int64
	seconds float64
}

// admitted is in percent of what the limit admits of the demand.
func (l *line) admitted() float64 {
	return 100 * float64(l.Admitted) / (limit * l.seconds)
}

func (l *line) leased() float64 { return 100 * float64(l.Leased) / float64(max(l.Asked, 1)) }

// early is the requests that were refused and that the limit admits, in percent of all.
func (l *line) early() float64 {
	wanted := min(float64(l.Asked), limit*l.seconds)
	return 100 * max(wanted-float64(l.Admitted), 0) / float64(max(l.Asked, 1))
}

func (l *line) perThousand() float64 { return 1000 * float64(l.calls) / float64(max(l.Asked, 1)) }

// measure prints a table of all limits at all round trips.
func measure(ctx context.Context, duration time.Duration, only string) (err error) {
	r, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	fmt.Println("| limit | round trip | requests a second | admitted, % of the limit | by leases, % | refused too early, % | calls a second | calls for 1,000 |")
	fmt.Println("|---|--:|--:|--:|--:|--:|--:|--:|")
	for _, s := range systems {
		if !strings.Contains(s.name, only) {
			continue
		}
		for _, trip := range trips {
			l, err := r.together(ctx, s.name, trip, duration)
			if err != nil {
				return fmt.Errorf("%s at %v: %w", s.name, trip, err)
			}
			fmt.Printf("| %s | %v | %.0f | %.1f | %.1f | %.2f | %.0f | %.1f |\n", l.system, l.trip,
				float64(l.Asked)/l.seconds, l.admitted(), l.leased(), l.early(), float64(l.calls)/l.seconds, l.perThousand())
		}
	}
	return nil
}
