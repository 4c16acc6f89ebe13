package core_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/limits"
)

// Limiters, and slots, of one store and name that have other limits are told once for the name, with both texts: they
// count together. Nothing is told of plans, of documents, and of what is the same.
func TestOtherLimitsOfOneName(t *testing.T) {
	hour := core.FixedWindow(9, time.Hour)
	for name, test := range map[string]struct {
		make func(s core.Store)
		told []string // in one record; none: nothing is
	}{
		"other policies": {func(s core.Store) {
			core.NewLimiter(s, "api", minute(60))
			core.NewLimiter(s, "api", minute(5))
			core.NewLimiter(s, "api", minute(7)) // the name is told
			core.NewLimiter(s, "api", minute(60))
		}, []string{`name=api`, `first="\"api\": sliding-log 60/minute"`, `second="\"api\": sliding-log 5/minute"`, "WithPlan"}},
		"other slots": {func(s core.Store) {
			core.NewSlots(s, "ws", 2)
			core.NewSlots(s, "ws", 3)
			core.NewSlots(s, "ws", 4)
		}, []string{"two slots", "name=ws", "first=2", "second=3"}},
		"one policy more": {func(s core.Store) {
			core.NewLimiter(s, "api", minute(60))
			core.NewLimiter(s, "api", minute(60).Named("api"), hour.Named("hour"))
		}, []string{`first="\"api\": sliding-log 60/minute"`, `second="\"api\": sliding-log 60/minute, \"hour\": fixed-window 9/hour"`}},
		"the same": {func(s core.Store) {
			core.NewLimiter(s, "api", minute(60).Named("a"), hour.Named("b"))
			core.NewLimiter(s, "api", hour.Named("b"), minute(60).Named("a"))
			core.NewLimiter(s, "one", minute(60))
			core.NewLimiter(s, "one", minute(60).Named("one"))
			core.NewSlots(s, "api", 2)
			core.NewSlots(s, "api", 2)
		}, nil},
		"other names, and stores": {func(s core.Store) {
			core.NewLimiter(s, "api", minute(60))
			core.NewLimiter(s, "login", minute(5))
			core.NewLimiter(new(core.MemoryStore), "api", minute(5))
		}, nil},
		"plans": {func(s core.Store) {
			l := core.NewLimiter(s, "api", minute(60)).WithPlan("gold", minute(600)).WithPlanFunc(func(string) ([]core.Policy, error) {
				return []core.Policy{minute(6000)}, nil
			})
			l.Plan("silver")
			core.NewSlots(s, "ws", 2).WithPlan("gold", 3)
		}, nil},
		"a document": {func(s core.Store) {
			core.NewLimiter(s, "api", minute(60))
			core.NewSlots(s, "ws", 2)
			source := func(context.Context) ([]byte, error) {
				return []byte(`{"limits": {"api": {"default": "free", "plans": {"free": "sliding-log 5/minute"}}},
					"slots": {"ws": {"default": "free", "plans": {"free": 9}}}}`), nil
			}
			book, err := limits.Open(t.Context(), s, source, limits.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer book.Close()
			if _, err := book.Limiter("api"); err != nil {
				t.Error(err)
			}
			if _, err := book.Slots("ws"); err != nil {
				t.Error(err)
			}
		}, nil},
		"very many": {func(s core.Store) {
			for i := range 3000 {
				core.NewLimiter(s, fmt.Sprint(i), minute(60))
			}
			core.NewLimiter(s, "7", minute(5))
			core.NewLimiter(s, "2999", minute(5)) // is not remembered
		}, []string{"name=7"}},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			logger := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
			test.make(new(core.MemoryStore))
			slog.SetDefault(logger)
			records := strings.Count(log.String(), "\n")
			if records != min(len(test.told), 1) {
				t.Errorf("%d records: %s", records, log.String())
			}
			for _, text := range test.told {
				if !strings.Contains(log.String(), text) {
					t.Errorf("%s in %s", text, log.String())
				}
			}
		})
	}
}
