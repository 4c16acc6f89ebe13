// Package redisurl parses the URL of a Redis, and shows no part of it.
package redisurl

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// errForm does not quote what is wrong, since any part of the URL may be of the password.
var errForm = errors.New("the URL has not the form redis://user:password@host:6379/0: " +
	"encode what is special in the password, and see redis.ParseURL for the options in the query")

// Parse returns the options that a URL stands for, as [redis.ParseURL] does. It refuses a URL with
// an @ after its host. There the host is in truth the beginning of a password, with a slash, a
// question mark or a number sign. Errors of connecting would show it.
func Parse(text string) (*redis.Options, error) {
	_, rest, _ := strings.Cut(text, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 && strings.Contains(rest[i:], "@") {
		return nil, errForm
	}
	o, err := redis.ParseURL(text)
	if err != nil { // which may quote any part of the URL
		return nil, errForm
	}
	return o, nil
}
