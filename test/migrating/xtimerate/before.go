// Package xtimerate is a program with golang.org/x/time/rate, and the same with headgate.
package xtimerate

import (
	"context"
	"sync"

	"golang.org/x/time/rate"
)

// Before returns a function that waits until a user may do something: 10 times a second, and
// 20 at once.
func Before() func(ctx context.Context, user string) error {
	var mutex sync.Mutex
	limiters := make(map[string]*rate.Limiter)
	return func(ctx context.Context, user string) error {
		mutex.Lock()
		limiter, ok := limiters[user]
		if !ok {
			limiter = rate.NewLimiter(10, 20)
			limiters[user] = limiter
		}
		mutex.Unlock()
		return limiter.Wait(ctx)
	}
}
