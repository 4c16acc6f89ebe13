package redisstore

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

const churnKeys, churnLimit = 5, 7

// A holder is a process that holds slots. Its arguments are the address, the SlotTTL, the
// name of the instance, and "default" if the rest of the Config is the default instead of one
// in which nothing is granted without Redis; it obeys the lines that it is sent.
func holder(args []string) error {
	ttl, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	c := Config{Failure: FailClosed, Timeout: patient}
	if args[3] == "default" {
		c = Config{}
	}
	c.SlotTTL, c.Instance = ttl, args[2]
	s, err := Open(&redis.UniversalOptions{Addrs: args[:1]}, c)
	if err != nil {
		return err
	}
	var all []*core.Slot
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Fields(in.Text())
		n, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return err
		}
		slots, err := core.NewSlots(s, "ws", n)
		if err != nil {
			return err
		}
		switch words[0] {
		case "fill": // the key, to that limit
			for {
				slot, err := slots.Acquire(context.Background(), "key")
				if errors.Is(err, core.ErrFull) {
					break
				}
				if err != nil {
					return err
				}
				all = append(all, slot)
			}
			fmt.Println(len(all))
		case "lost": // all of them
			for _, slot := range all {
				<-slot.Lost()
			}
			fmt.Println("lost")
		case "release":
			for _, slot := range all {
				slot.Release()
			}
			all = nil
			fmt.Println("released")
		case "churn": // so many slots
			if err := churn(s, int(n)); err != nil {
				return err
			}
			fmt.Println("churned")
		case "close":
			fmt.Println("closed", slots.Close(context.Background()))
		}
	}
	return nil
}

// churn acquires and releases randomly, until each of ten got so many slots, and counts in
// Redis what is held.
func churn(s *Store, times int) error {
	slots, err := core.NewSlots(s, "ws", churnLimit)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	faults := make(chan error, 10)
	for range cap(faults) {
		all.Go(func() { faults <- churnOne(s, slots, times) })
	}
	all.Wait()
	close(faults)
	for fault := range faults {
		err = errors.Join(err, fault)
	}
	return err
}

func churnOne(s *Store, slots *core.Slots, times int) error {
	ctx := context.Background()
	for granted := 0; granted < times; {
		key := "churn" + strconv.Itoa(rand.IntN(churnKeys))
		slot, err := slots.Acquire(ctx, key)
		if errors.Is(err, core.ErrFull) {
			<-time.After(time.Duration(rand.IntN(int(time.Millisecond))))
			continue
		}
		if err != nil {
			return err
		}
		granted++
		n, err := s.Client().Incr(ctx, "held:"+key).Result()
		if err != nil {
			return err
		}
		if n > churnLimit {
			return fmt.Errorf("%d slots are held", n)
		}
		if err := s.Client().Decr(ctx, "held:"+key).Err(); err != nil {
			return err
		}
		slot.Release()
	}
	return nil
}

func startHolder(t *testing.T, server *redistest.Server, ttl time.Duration, instance string) *proctest.Process {
	return proctest.Start(t, "holder", server.Addr(), ttl.String(), instance, "")
}

// A burner is a process that keeps processors busy until it is killed.
func burner([]string) error {
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for n := 0; ; n++ {
				runtime.KeepAlive(n)
			}
		}()
	}
	select {}
}

func tell(t *testing.T, p *proctest.Process, command, want string) {
	t.Helper()
	p.Send(command)
	if line := p.Line(); line != want {
		t.Fatalf("%s: %q, want %q", command, line, want)
	}
}

func newSlots(t testing.TB, s *Store, name string, limit int64) *core.Slots {
	t.Helper()
	slots, err := core.NewSlots(s, name, limit)
	if err != nil {
		t.Fatal(err)
	}
	return slots
}

// acquires takes a slot, in time.
func acquires(t *testing.T, slots *core.Slots, key string) *core.Slot {
	t.Helper()
	var slot *core.Slot
	eventually(t, "a slot", func() (ok bool) {
		var err error
		slot, err = slots.Acquire(t.Context(), key)
		if err != nil && !errors.Is(err, core.ErrFull) && !errors.Is(err, core.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	return slot
}

// refused asks for a slot, in time, and must be told that there is none.
func refused(t *testing.T, slots *core.Slots, key string) {
	t.Helper()
	eventually(t, "an answer", func() bool {
		_, err := slots.Acquire(t.Context(), key)
		if !errors.Is(err, core.ErrFull) && !errors.Is(err, core.ErrUnavailable) {
			t.Fatalf("a full key: %v", err)
		}
		return errors.Is(err, core.ErrFull)
	})
}

// Eight processes never hold more than the limit, and leave nothing behind.
func TestSlotsOfProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var all []*proctest.Process
	for range 8 {
		all = append(all, startHolder(t, server, 15*time.Second, ""))
	}
	for _, p := range all {
		p.Send("churn 30")
	}
	for _, p := range all {
		if line := p.Line(); line != "churned" {
			t.Fatal(line)
		}
	}
	s := open(t, Config{}, server.Addr())
	// What was just released is written twice more, in the next two beats; then nothing
	// is left of it.
	eventually(t, "all keys to be gone", func() bool {
		n, err := s.Client().Exists(t.Context(), churned(s)...).Result()
		return err == nil && n == 0
	})
	for _, p := range all {
		tell(t, p, "close 1", "closed <nil>")
	}
	n, err := s.Client().ZCount(t.Context(), s.backend.names.servers(), "(0", "1000000000000000").Result()
	if err != nil || n != 1 {
		t.Errorf("%d are live, want the clock alone: %v", n, err)
	}
}

var burners = flag.Int("burners", 0, "how many times the work that it can do the machine has while slots are taken")

// On a busy machine, and with the default settings, the limit holds: nothing is granted
// without Redis. That no answer takes 2 s is a matter of the machine, so without burners the
// settings are not the default.
func TestSlotsOfABusyMachine(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	settings := ""
	if *burners > 0 {
		settings = "default"
	}
	var all []*proctest.Process
	for range 4 {
		all = append(all, proctest.Start(t, "holder", server.Addr(), "15s", "", settings))
	}
	for range *burners {
		proctest.Start(t, "burner")
	}
	for _, p := range all {
		p.Send("churn 10") // ends if more than the limit is held
	}
	for _, p := range all {
		if line := p.Line(); line != "churned" {
			t.Fatal(line)
		}
	}
}

func churned(s *Store) (names []string) {
	for i := range churnKeys {
		names = append(names, s.backend.names.slots("ws", "churn"+strconv.Itoa(i)))
	}
	return names
}

// shortTTL is for tests that wait for its end. Much less, and a busy machine would take the
// living for dead.
const shortTTL = 1500 * time.Millisecond

// Who is killed holds nothing any more after a TTL and a beat.
func TestSlotsOfTheKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, SlotTTL: shortTTL}, server.Addr())
	slots := newSlots(t, s, "ws", 3)
	acquires(t, slots, "another")
	p := startHolder(t, server, shortTTL, "")
	tell(t, p, "fill 3", "3")
	refused(t, slots, "key")
	p.Kill()
	killed := time.Now()
	for range 3 {
		acquires(t, slots, "key")
	}
	t.Logf("TTL %v: free %v after the process was killed", shortTTL, time.Since(killed))
	refused(t, slots, "key")
	if n, err := slots.Count(t.Context(), "key"); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// Who ends in order holds nothing any more at once.
func TestSlotsOfTheClosed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const limit = 30
	slots := newSlots(t, open(t, Config{Failure: FailClosed, SlotTTL: time.Hour}, server.Addr()), "ws", limit)
	acquires(t, slots, "another")
	p := startHolder(t, server, time.Hour, "")
	tell(t, p, "fill 30", "30")
	refused(t, slots, "key")
	server.ResetStats()
	tell(t, p, "close 1", "closed <nil>")
	closed := time.Now()
	// Its tombstone, the statement of its key, and perhaps what follows the first acquires.
	if n := server.Calls("evalsha"); n < 2 || n > limit/3 {
		t.Errorf("%d commands to close", n)
	}
	for range limit {
		acquires(t, slots, "key")
	}
	t.Logf("free %v after the slots were closed", time.Since(closed))
	refused(t, slots, "key")
}

// Who is restarted under the same name of the instance frees what its predecessor held.
func TestSlotsOfTheRestarted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, SlotTTL: time.Hour}, server.Addr())
	other := startHolder(t, server, time.Hour, "pod-2")
	tell(t, other, "fill 1", "1")
	p := startHolder(t, server, time.Hour, "pod-1")
	tell(t, p, "fill 4", "3")
	p.Kill()
	refused(t, newSlots(t, s, "ws", 4), "key")
	p = startHolder(t, server, time.Hour, "pod-1")
	tell(t, p, "fill 4", "3")
	if n, err := newSlots(t, s, "ws", 4).Count(t.Context(), "key"); n != 4 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// Who is paused for too long is told so, and holds more than there is until it is
// over, but no more than its own.
func TestSlotsOfThePaused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, SlotTTL: shortTTL}, server.Addr())
	slots := newSlots(t, s, "ws", 3)
	acquires(t, slots, "another")
	p := startHolder(t, server, shortTTL, "")
	tell(t, p, "fill 3", "3")
	p.Pause()
	paused := time.Now()
	var own []*core.Slot
	for range 3 {
		own = append(own, acquires(t, slots, "key"))
	}
	t.Logf("TTL %v: free %v after the process was paused", shortTTL, time.Since(paused))
	p.Resume()
	tell(t, p, "lost 1", "lost")
	counts := func(want int64) {
		t.Helper()
		eventually(t, "the count to be right", func() bool {
			n, err := slots.Count(t.Context(), "key")
			return n == want && err == nil
		})
	}
	counts(6)
	refused(t, slots, "key")
	tell(t, p, "release 1", "released")
	counts(3)
	refused(t, slots, "key")
	own[0].Release()
	eventually(t, "the process to get one again", func() bool {
		p.Send("fill 3")
		return p.Line() == "1"
	})
	refused(t, slots, "key")
	select {
	case <-own[1].Lost():
		t.Error("who lives was told that it is dead")
	default:
	}
}
