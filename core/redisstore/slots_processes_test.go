package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

const churnKeys, churnLimit = 5, 7

// A holder is a process that holds slots. Its arguments are the address, the SlotTTL
// and the name of the instance; it obeys the lines that it is sent.
func holder(args []string) error {
	ttl, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	s, err := Open(&redis.UniversalOptions{Addrs: args[:1]},
		Config{Failure: FailClosed, Timeout: patient, SlotTTL: ttl, Instance: args[2]})
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
		case "churn": // so many times
			granted, err := churn(s, int(n))
			if err != nil {
				return err
			}
			fmt.Println(granted)
		case "close":
			fmt.Println("closed", slots.Close(context.Background()))
		}
	}
	return nil
}

// churn acquires and releases randomly, and counts in Redis what is held. It returns how
// many slots it got.
func churn(s *Store, times int) (granted int64, err error) {
	slots, err := core.NewSlots(s, "ws", churnLimit)
	if err != nil {
		return 0, err
	}
	var all sync.WaitGroup
	var total atomic.Int64
	faults := make(chan error, 10)
	for range cap(faults) {
		all.Go(func() { faults <- churnOne(s, slots, times, &total) })
	}
	all.Wait()
	close(faults)
	for fault := range faults {
		err = errors.Join(err, fault)
	}
	return total.Load(), err
}

func churnOne(s *Store, slots *core.Slots, times int, granted *atomic.Int64) error {
	ctx := context.Background()
	for range times {
		key := "churn" + strconv.Itoa(rand.IntN(churnKeys))
		slot, err := slots.Acquire(ctx, key)
		if errors.Is(err, core.ErrFull) {
			<-time.After(time.Duration(rand.IntN(int(time.Millisecond))))
			continue
		}
		if err != nil {
			return err
		}
		granted.Add(1)
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
	return proctest.Start(t, "holder", server.Addr(), ttl.String(), instance)
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

// refused asks for a slot and must be told that there is none.
func refused(t *testing.T, slots *core.Slots, key string) {
	t.Helper()
	if _, err := slots.Acquire(t.Context(), key); !errors.Is(err, core.ErrFull) {
		t.Fatalf("a full key: %v", err)
	}
}

// Eight processes never hold more than the limit, and leave nothing behind.
func TestSlotsOfProcesses(t *testing.T) {
	server := redistest.Start(t)
	var all []*proctest.Process
	for range 8 {
		all = append(all, startHolder(t, server, 15*time.Second, ""))
	}
	for _, p := range all {
		p.Send("churn 100")
	}
	granted := 0
	for _, p := range all {
		n, err := strconv.Atoi(p.Line())
		if err != nil {
			t.Fatal(err)
		}
		granted += n
	}
	if granted < 1000 { // of 8,000 tries; most are refused by what is remembered
		t.Errorf("only %d grants", granted)
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
	n, err := s.Client().ZCount(t.Context(), s.names.servers(), "(0", "1000000000000000").Result()
	if err != nil || n != 1 {
		t.Errorf("%d are live, want the clock alone: %v", n, err)
	}
}

func churned(s *Store) (names []string) {
	for i := range churnKeys {
		names = append(names, s.names.slots("ws", "churn"+strconv.Itoa(i)))
	}
	return names
}

const shortTTL = 600 * time.Millisecond

// Who is killed holds nothing any more after a TTL and a beat.
func TestSlotsOfTheKilled(t *testing.T) {
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
	server := redistest.Start(t)
	slots := newSlots(t, open(t, Config{Failure: FailClosed, SlotTTL: time.Hour}, server.Addr()), "ws", 3)
	acquires(t, slots, "another")
	p := startHolder(t, server, time.Hour, "")
	tell(t, p, "fill 3", "3")
	refused(t, slots, "key")
	server.ResetStats()
	tell(t, p, "close 1", "closed <nil>")
	closed := time.Now()
	if n := server.Calls("evalsha"); n < 1 || n > 2 { // a beat may be among them
		t.Errorf("%d commands to close", n)
	}
	for range 3 {
		acquires(t, slots, "key")
	}
	t.Logf("free %v after the slots were closed", time.Since(closed))
	refused(t, slots, "key")
}

// Who is restarted under the same name of the instance frees what its predecessor held.
func TestSlotsOfTheRestarted(t *testing.T) {
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
