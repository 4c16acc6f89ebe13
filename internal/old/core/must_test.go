package core_test

import (
	"errors"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

func TestMust(t *testing.T) {
	store := memstore.New(memstore.Config{})
	if l := core.Must(core.New(store, "api", core.SlidingLog(core.PerMinute(60)))); l.Name() != "api" {
		t.Errorf("limiter %q, want api", l.Name())
	}
	defer func() {
		err, _ := recover().(error)
		var fault *core.ConfigError
		if !errors.As(err, &fault) || fault.Limiter != "none" {
			t.Errorf("the panic is %v, want the error of New", err)
		}
	}()
	core.Must(core.New(store, "none", core.SlidingLog(core.PerMinute(0))))
	t.Error("Must returned in spite of an error")
}
