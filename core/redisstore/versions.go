package redisstore

import (
	"reflect"
	"strings"

	"github.com/redis/go-redis/v9"
)

// What follows is for the versions of go-redis: from the one in go.mod, which servers may
// have for other reasons, to the newest.

// heedsNoRetry reports whether commands that must not be repeated are not: since go-redis 9.19.
func heedsNoRetry() bool {
	return reflect.TypeFor[redis.Cmder]().Implements(reflect.TypeFor[interface{ NoRetry() bool }]())
}

// dialOnce sets DialerRetries of options to 1 unless it is set. Versions without that field
// dial once.
func dialOnce(options any) {
	if f := reflect.ValueOf(options).Elem().FieldByName("DialerRetries"); f.IsValid() && f.IsZero() {
		f.SetInt(1)
	}
}

// noConnection reports whether an error says that there was no connection to be had. Its
// value is not exported by all versions.
func noConnection(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "redis: connection pool timeout") ||
		strings.Contains(err.Error(), "redis: connection pool exhausted"))
}
