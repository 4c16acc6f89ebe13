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
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
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
// admitted.
func hammerAll(s *Store) (lines []string, err error) {
	const askers, times = 20, 40
	for _, name := range slices.Sorted(maps.Keys(hammered())) {
		l, err := core.New(s, name, hammered()[name])
		if err != nil {
			return nil, err
		}
		var mu sync.Mutex
		var admitted int
		var faults []error
		var all sync.WaitGroup
		for range askers {
			all.Go(func() {
				for range times {
					d, err := l.Allow(context.Background(), "k")
					mu.Lock()
					if d.Allowed {
						admitted++
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
		lines = append(lines, strconv.Itoa(admitted))
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

// Four processes and this one ask for the same keys. This one does so in a bubble, by
// whose clock it is the year 2000: the clock that counts is that of Redis.
func TestProcessesTogetherAreAdmittedTheLimit(t *testing.T) {
	server := redistest.Start(t)
	var others []*proctest.Process
	for range 4 {
		p := proctest.Start(t, "hammer", server.Addr())
		if line := p.Line(); line != "ready" {
			t.Fatal(line)
		}
		others = append(others, p)
	}
	for _, p := range others {
		p.Send("go")
	}
	var answers [][]string
	synctest.Test(t, func(t *testing.T) {
		lines, err := hammerAll(open(t, Config{Failure: FailClosed}, server.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, lines)
	})
	for _, p := range others {
		answers = append(answers, p.Wait())
	}
	for i, name := range slices.Sorted(maps.Keys(hammered())) {
		var sum int64
		for _, lines := range answers {
			if i >= len(lines) {
				t.Fatalf("a process answered %q", lines)
			}
			n, err := strconv.ParseInt(lines[i], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		if want := hammered()[name].Limit(); sum != want {
			t.Errorf("%s: admitted %d, the limit is %d", name, sum, want)
		}
	}
}
