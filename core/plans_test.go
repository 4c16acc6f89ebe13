package core_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
)

// A table is a database of plans: a limit for each, of units and of slots.
type table struct {
	mu     sync.Mutex
	limits map[string]int64
	err    error
	hang   chan struct{} // if there is one, who asks waits for it
	asked  int
}

var errTable = errors.New("the table is away")

func (t *table) limit(plan string) (int64, error) {
	t.mu.Lock()
	t.asked++
	hang := t.hang
	t.mu.Unlock()
	if hang != nil {
		<-hang
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return 0, t.err
	}
	if limit, ok := t.limits[plan]; ok {
		return limit, nil
	}
	return -1, nil
}

func (t *table) policies(plan string) ([]core.Policy, error) {
	limit, err := t.limit(plan)
	switch {
	case err != nil || limit < 0:
		return nil, err
	case limit == 0:
		return []core.Policy{core.Blocked()}, nil
	}
	return []core.Policy{core.FixedWindow(limit, 24*time.Hour)}, nil
}

func (t *table) set(plan string, limit int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits[plan] = limit
	t.err = err
}

// pass lets time of a bubble pass, and what is due then happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// planned are a limiter and slots, whose default is 1, with the plans of a table. Their limits are what they show of
// a key that has used nothing.
var planned = map[string]func(t *testing.T, table *table) (limit func(plan string) (int64, error)){
	"limiter": func(t *testing.T, table *table) func(string) (int64, error) {
		l := core.NewLimiter(new(core.MemoryStore), "api", core.FixedWindow(1, 24*time.Hour)).WithPlanFunc(table.policies)
		return func(plan string) (int64, error) {
			d, err := l.Plan(plan).Peek(t.Context(), "anna")
			return d.Limit, err
		}
	},
	"slots": func(t *testing.T, table *table) func(string) (int64, error) {
		s := core.NewSlots(new(core.MemoryStore), "ws", 1).WithPlanFunc(table.limit)
		return func(plan string) (limit int64, err error) {
			var all []*core.Slot
			for {
				slot, err := s.Plan(plan).Acquire(t.Context(), "anna")
				if err != nil {
					for _, slot := range all {
						slot.Release()
					}
					if errors.Is(err, core.ErrFull) {
						err = nil
					}
					return int64(len(all)), err
				}
				all = append(all, slot)
			}
		}
	},
}

// Who upgrades has the new limit within a minute, and who is removed the default.
func TestAnswersOfPlanFunctionsApplyForAMinute(t *testing.T) {
	for name, of := range planned {
		synctest.Test(t, func(t *testing.T) {
			plans := &table{limits: map[string]int64{"anna": 2, "ben": 0}}
			limit := of(t, plans)
			for _, step := range []struct {
				after     time.Duration
				set, want int64
				asked     int
			}{
				{0, 2, 2, 1},
				{59 * time.Second, 5, 2, 1},
				{2 * time.Second, 5, 5, 2},
				{time.Second, 3, 5, 2},
				{time.Minute, 3, 3, 3},
				{time.Hour, 3, 3, 4},
				{time.Minute, -1, 1, 5},
				{time.Minute, 0, 0, 6},
			} {
				pass(step.after)
				plans.set("anna", step.set, nil)
				if got, err := limit("anna"); err != nil || got != step.want || plans.asked != step.asked {
					t.Errorf("%s, %+v: %d, %v, asked %d times", name, step, got, err, plans.asked)
				}
			}
		})
	}
}

// While one call asks, the others use the old answer, however long it takes.
func TestOneCallAsksPlanFunctions(t *testing.T) {
	for name, of := range planned {
		synctest.Test(t, func(t *testing.T) {
			plans := &table{limits: map[string]int64{"anna": 2}}
			limit := of(t, plans)
			if got, err := limit("anna"); err != nil || got != 2 {
				t.Fatal(got, err)
			}
			pass(time.Minute)
			plans.hang = make(chan struct{})
			answers := make(chan int64)
			go func() {
				got, _ := limit("anna")
				answers <- got
			}()
			synctest.Wait()
			for range 100 {
				if got, err := limit("anna"); err != nil || got != 2 {
					t.Errorf("%s: meanwhile: %d, %v", name, got, err)
				}
			}
			plans.set("anna", 4, nil)
			close(plans.hang)
			if got := <-answers; got != 4 || plans.asked != 2 {
				t.Errorf("%s: %d, asked %d times", name, got, plans.asked)
			}
			if got, err := limit("anna"); err != nil || got != 4 {
				t.Errorf("%s: afterwards: %d, %v", name, got, err)
			}
		})
	}
}

// After an error the old answer applies; without one the call fails. It is told once a minute. A panic gets to who has
// A plan without policies is wrong, also if it was the default before.
func TestPlanWithoutPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer []core.Policy
		l := core.NewLimiter(new(core.MemoryStore), "api", core.FixedWindow(1, time.Hour)).
			WithPlanFunc(func(string) ([]core.Policy, error) { return answer, nil })
		if _, err := l.Plan("anna").Allow(t.Context(), "anna"); err != nil {
			t.Error(err)
		}
		answer = []core.Policy{}
		pass(time.Minute)
		if _, err := l.Plan("anna").Allow(t.Context(), "anna"); !errors.Is(err, core.ErrInvalid) {
			t.Error(err)
		}
	})
}

// Many callers may use an answer while one replaces it: the race detector looks on.
func TestAnswersAreReplacedWhileTheyAreUsed(t *testing.T) {
	for _, of := range planned {
		synctest.Test(t, func(t *testing.T) {
			plans := &table{limits: map[string]int64{"anna": 2}}
			limit := of(t, plans)
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for i := range 20 {
						if _, err := limit("anna"); err != nil {
							t.Error(err)
						}
						plans.set("anna", int64(2+i), nil)
						time.Sleep(time.Minute / 2)
					}
				})
			}
			all.Wait()
		})
	}
}

// asked, and the function is asked again.
func TestErrorsOfPlanFunctions(t *testing.T) {
	for name, of := range planned {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			logger := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
			defer slog.SetDefault(logger)
			plans := &table{limits: map[string]int64{"anna": 2, "ben": 3}}
			limit := of(t, plans)
			check := func(plan string, want int64, fails error, logged int) {
				t.Helper()
				got, err := limit(plan)
				if got != want || !errors.Is(err, fails) || (err == nil) != (fails == nil) || strings.Count(log.String(), "\n") != logged {
					t.Errorf("%s: %s: %d, %v, logged %s", name, plan, got, err, log.String())
				}
			}
			check("anna", 2, nil, 0)
			plans.set("anna", 9, errTable)
			check("anna", 2, nil, 0) // nobody asks
			check("ben", 0, errTable, 1)
			check("ben", 0, errTable, 1)
			pass(time.Minute)
			check("anna", 2, nil, 2)
			check("ben", 0, errTable, 2)
			pass(30 * time.Second)
			plans.set("anna", 9, nil)
			check("anna", 2, nil, 2)
			check("ben", 3, nil, 2)
			pass(30 * time.Second)
			check("anna", 9, nil, 2)
			if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "the function of its plans fails") ||
				!strings.Contains(text, errTable.Error()) || strings.Contains(text, "anna") {
				t.Errorf("%s: logged %s", name, text)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		l := core.NewLimiter(new(core.MemoryStore), "api", core.Blocked()).WithPlanFunc(func(string) ([]core.Policy, error) {
			if asked++; asked == 2 {
				panic("on purpose")
			}
			return []core.Policy{minute(int64(asked))}, nil
		})
		for _, want := range []string{"1", "on purpose", "1", "3"} {
			got := panics(func() {
				d, _ := l.Plan("gold").Peek(t.Context(), "anna")
				panic(fmt.Sprint(d.Limit))
			})
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
			if want != "on purpose" {
				pass(time.Minute)
			}
		}
	})
}

// Reset forgets what a key has used under all policies that a plan had, also those that came back.
func TestResetOfPlansOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policies := []core.Policy{core.FixedWindow(2, 24*time.Hour), core.TokenBucket(3, 24*time.Hour), core.SlidingLog(4, 48*time.Hour)}
		now := 0
		l := core.NewLimiter(new(core.MemoryStore), "api", core.Blocked()).WithPlanFunc(func(string) ([]core.Policy, error) {
			if now < 0 {
				return nil, nil
			}
			return policies[now : now+1], nil
		})
		for _, now = range []int{0, 1, 2, 0, 1, 2, -1} {
			for range 5 {
				if _, err := l.Plan("gold").Allow(t.Context(), "anna"); err != nil {
					t.Fatal(err)
				}
			}
			pass(time.Minute)
		}
		if err := l.Plan("gold").Reset(t.Context(), "anna"); err != nil {
			t.Fatal(err)
		}
		for i := range policies {
			now = i
			pass(time.Minute)
			if d, err := l.Plan("gold").Allow(t.Context(), "anna"); err != nil || d.Remaining != d.Limit-1 {
				t.Errorf("%v: %v, %v", policies[i], d, err)
			}
		}
	})
}
