package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"
)

// simulate has clients call the service until the context ends. Some are within the limits,
// and some are not.
func (s *service) simulate(ctx context.Context) {
	for i := range 20 { // the first sends most
		user := fmt.Sprintf("user-%d", i+1)
		go every(ctx, time.Duration(i+1)*40*time.Millisecond, func(context.Context) { s.call(ctx, user) })
	}
	go every(ctx, 2*time.Second, func(context.Context) { s.login.Allow(ctx, "mallory") })
	go every(ctx, 3*time.Second, func(context.Context) {
		gone, cancel := context.WithCancel(ctx)
		cancel() // a client that hung up
		s.login.Wait(gone, "impatient")
	})
	for i := range 5 {
		go every(ctx, time.Duration(i+5)*time.Second, func(ctx context.Context) { s.stream(ctx, time.Duration(20-i)*time.Second/4) })
	}
}

// call is one request.
func (s *service) call(ctx context.Context, user string) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.Header.Set("X-User", user)
	s.api.ServeHTTP(httptest.NewRecorder(), r)
}

// stream holds a slot for a while.
func (s *service) stream(ctx context.Context, d time.Duration) {
	slot, err := s.streams.Acquire(ctx, "everyone")
	if err != nil {
		return
	}
	defer slot.Release()
	pause(ctx, d)
}

// every calls a function, now and then with this distance, until the context ends.
func every(ctx context.Context, d time.Duration, f func(context.Context)) {
	for ctx.Err() == nil {
		f(ctx)
		pause(ctx, d)
	}
}

// pause waits for a time, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
