package nethttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
)

// A desk is a handler behind a guard, whose requests end when they are told to.
type desk struct {
	t       *testing.T
	handler http.Handler
	ctx     context.Context
}

func newDesk(t *testing.T, g *nethttp.Guard) *desk {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return &desk{t, g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		r.Context().Value(started{}).(*atomic.Bool).Store(true)
		<-r.Context().Done()
	})), ctx}
}

type started struct{}

// A visit is a request.
type visit struct {
	handled atomic.Bool
	code    atomic.Int64 // of the response, when that is over
	end     context.CancelFunc
}

func (d *desk) send(user string) *visit {
	v := &visit{}
	ctx, cancel := context.WithCancel(context.WithValue(d.ctx, started{}, &v.handled))
	v.end = cancel
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.Header.Set("X-User", user)
	go func() {
		w := httptest.NewRecorder()
		d.handler.ServeHTTP(w, r)
		v.code.Store(int64(w.Code))
	}()
	return v
}

// sharedGuard has a user's limit of 2 beside one of all of 4, which others take.
func sharedGuard(t *testing.T, s core.SlotStore) *nethttp.Guard {
	return newGuard(t, nethttp.Config{
		Rules: []nethttp.Rule{
			{Slots: newSlots(t, s, "user", 2), Key: keyfuncs.Header("X-User"), Queue: 5},
			{Slots: newSlots(t, s, "all", 4), Key: keyfuncs.Everyone(), Service: true, Queue: 5},
		},
		Wait: time.Hour,
	})
}

// While a service is full, one user's requests do not take the whole line.
func TestOneUserLeavesRoomInTheLine(t *testing.T) {
	stage := func(t *testing.T, s core.SlotStore, wait func(what string, f func() bool)) {
		d := newDesk(t, sharedGuard(t, s))
		var busy []*visit
		for i := range 4 {
			v := d.send(fmt.Sprint("busy ", i))
			busy = append(busy, v)
			wait("a request to be handled", v.handled.Load)
		}
		var waiting []*visit
		for i := range 9 {
			user := "anna"
			if i >= 6 {
				user = fmt.Sprint("other ", i)
			}
			waiting = append(waiting, d.send(user))
			wait("the request to wait", func() bool { return true })
		}
		for _, v := range busy {
			v.end()
		}
		for len(waiting) > 0 {
			wait("another to be served or refused", func() bool {
				n := len(waiting)
				waiting = slices.DeleteFunc(waiting, func(v *visit) bool {
					if code := v.code.Load(); code != 0 {
						t.Errorf("one that may wait got %d", code)
						return true
					}
					if v.handled.Load() {
						v.end()
					}
					return v.handled.Load()
				})
				return len(waiting) < n
			})
		}
	}
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			stage(t, memstore.New(memstore.Config{}), func(what string, f func() bool) {
				if synctest.Wait(); !f() {
					t.Fatalf("waited in vain for %s", what)
				}
			})
		})
	})
	t.Run("Redis", func(t *testing.T) {
		s, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{redistest.Start(t).Addr()}},
			redisstore.Config{SlotTimeout: time.Minute / 15, SlotTTL: time.Minute, Failure: redisstore.FailClosed})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Client().Close() })
		stage(t, s, func(_ string, f func() bool) {
			for !f() { // go test ends what lasts for ever
				runtime.Gosched()
			}
		})
	})
}

// A request that waits gets the slots that a document gives it meanwhile.
func TestRaisedNumberIsSeenByThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var number atomic.Int64
		number.Store(1)
		store := memstore.New(memstore.Config{})
		book, err := limits.Open(t.Context(), store, store, limits.SourceFunc(func(context.Context) ([]byte, error) {
			return fmt.Appendf(nil, `{"slots": {"jobs": {"plans": {"free": %d}}}}`, number.Load()), nil
		}), limits.Config{Every: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer book.Close()
		jobs, err := book.Slots("jobs")
		if err != nil {
			t.Fatal(err)
		}
		d := newDesk(t, newGuard(t, nethttp.Config{
			Rules: []nethttp.Rule{{LimitSlots: jobs, Key: keyfuncs.Header("X-User"), Queue: 5}}, Wait: time.Hour,
		}))
		first, second := d.send("anna"), d.send("anna")
		synctest.Wait()
		if first.handled.Load() == second.handled.Load() {
			t.Fatal("not one of two is handled")
		}
		number.Store(2)
		time.Sleep(1200 * time.Millisecond) // the document, and who waits
		synctest.Wait()
		if !first.handled.Load() || !second.handled.Load() {
			t.Error("one waits although the number was raised")
		}
		first.end()
		second.end()
		synctest.Wait()
	})
}

// An error of PlanSlots while a request waits changes nothing, of no rule.
func TestPlanSlotsFailsForOneWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.Config{})
		user, all, other := newSlots(t, s, "user", 1), newSlots(t, s, "all", 1), newSlots(t, s, "other", 1)
		var wrong atomic.Bool
		choose := func(of func() *core.Slots) func(*http.Request, string) *core.Slots {
			return func(*http.Request, string) *core.Slots {
				if wrong.Load() {
					return of()
				}
				return nil
			}
		}
		d := newDesk(t, newGuard(t, nethttp.Config{
			Rules: []nethttp.Rule{
				{Slots: user, Key: keyfuncs.Header("X-User"), Queue: 5, PlanSlots: choose(func() *core.Slots { return core.Must(user.With(100)) })},
				{Slots: all, Key: keyfuncs.Everyone(), Queue: 5, PlanSlots: choose(func() *core.Slots { return other })},
			},
			Wait: time.Hour,
		}))
		first := d.send("anna")
		synctest.Wait()
		second := d.send("anna")
		synctest.Wait()
		wrong.Store(true)
		time.Sleep(time.Second)
		first.end()
		synctest.Wait()
		time.Sleep(time.Second)
		if second.code.Load() != 0 || !second.handled.Load() {
			t.Errorf("the second: %d, handled %v", second.code.Load(), second.handled.Load())
		}
		second.end()
		synctest.Wait()
	})
}
