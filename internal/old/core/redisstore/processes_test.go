package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

const hammerLimit = 500

// hammered are the policies that processes hammer together.
func hammered() map[string]core.Policy {
	all := everyAlgorithm(hammerLimit)
	all["SlidingWindow that is never over"] = core.SlidingWindow(core.PerDay(hammerLimit)).NeverOver()
	all["a short SlidingLog"] = core.SlidingLog(core.PerHour(50))
	all["FixedWindow with denied"] = core.FixedWindow(per(hammerLimit, 400*day)).CountDenied()
	all["MinInterval"] = core.MinInterval(time.Hour)
	return all
}

// hammerAll asks from many goroutines, for each policy in turn, and returns what was
// admitted for each key.
func hammerAll(s *Store) (lines []string, err error) {
	const askers, times = 40, 50
	keys := keysByMaster(s, 3) // for the test on a Cluster of three masters
	for _, name := range slices.Sorted(maps.Keys(hammered())) {
		l, err := core.New(s, "hammered: "+name, hammered()[name])
		if err != nil {
			return nil, err
		}
		var mu sync.Mutex
		admitted := make([]int, len(keys))
		var faults []error
		var all sync.WaitGroup
		for i := range askers {
			all.Go(func() {
				for j := range times {
					k := (i + j) % len(keys)
					d, err := l.Allow(context.Background(), keys[k])
					mu.Lock()
					if d.Allowed {
						admitted[k]++
					}
					faults = append(faults, err)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if err := errors.Join(faults...); err != nil {
			return nil, err
		}
		for _, n := range admitted {
			lines = append(lines, strconv.Itoa(n))
		}
	}
	return lines, nil
}

// hammer is a process that does so once it is told to.
func hammer(args []string) error {
	s, err := Open(&redis.UniversalOptions{Addrs: args}, Config{Failure: FailClosed, Timeout: patient})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	lines, err := hammerAll(s)
	for _, line := range lines {
		fmt.Println(line)
	}
	return err
}

// Four processes and this one ask for the same keys, from 200 goroutines. This one does so
// in a bubble, by whose clock it is the year 2000: the clock that counts is that of Redis.
func TestProcessesTogetherAreAdmittedTheLimit(t *testing.T) {
	server := redistest.Start(t)
	others := startHammers(t, 4, server.Addr())
	var lines []string
	bubble.Test(t, func(t *testing.T) {
		var err error
		if lines, err = hammerAll(open(t, Config{Failure: FailClosed}, server.Addr())); err != nil {
			t.Fatal(err)
		}
	})
	others.admittedTheLimit(t, lines)
}

// The same on a Cluster.
func (c clusterTest) processesTogether(t *testing.T) {
	startHammers(t, 4, c.Masters.Addrs()...).admittedTheLimit(t)
}

type hammers []*proctest.Process

func startHammers(t *testing.T, count int, addrs ...string) (all hammers) {
	t.Helper()
	for range count {
		p := proctest.Start(t, "hammer", addrs...)
		if line := p.Line(); line != "ready" {
			t.Fatal(line)
		}
		all = append(all, p)
	}
	for _, p := range all {
		p.Send("go")
	}
	return all
}

// admittedTheLimit checks the sums of what the processes, and others, were admitted.
func (all hammers) admittedTheLimit(t *testing.T, answers ...[]string) {
	t.Helper()
	for _, p := range all {
		answers = append(answers, p.Wait())
	}
	const keys = 3
	for i, name := range slices.Sorted(maps.Keys(hammered())) {
		for k := range keys {
			var sum int64
			for _, lines := range answers {
				if len(lines) != keys*len(hammered()) {
					t.Fatalf("a process answered %q", lines)
				}
				n, err := strconv.ParseInt(lines[keys*i+k], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
			if want := hammered()[name].Limit(); sum != want {
				t.Errorf("%s, key %d: admitted %d, the limit is %d", name, k, sum, want)
			}
		}
	}
}
