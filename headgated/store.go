package headgated

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/internal/backend"
	limitsdoc "github.com/headgate/headgate/internal/document"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/settle"
)

// An opened store is what a configuration stands for.
type opened struct {
	store  *backend.Store
	client redis.UniversalClient // nil: the counts are in memory
	close  func(context.Context) error
}

// openStore returns the store of a configuration with its defaults. Nothing is sent there. seen is nil if nothing is to
// be counted.
func (c *Config) openStore(seen *stats.Stats) (*opened, error) {
	var observers []*core.Observer
	if seen != nil {
		observers = append(observers, seen.Observer())
	}
	if c.Redis == "" {
		memory := &core.MemoryStore{Observers: observers}
		return &opened{store: memory.Backend(), close: func(context.Context) error { return nil }}, nil
	}
	s, err := redisstore.Open(c.Redis, redisstore.Config{
		Prefix: c.RedisPrefix, Secret: c.Secret, Timeout: c.Timeout, Failure: c.Failure, Servers: c.Servers, Lease: c.Lease, Observers: observers,
	})
	if err != nil {
		return nil, err
	}
	return &opened{s.Backend(), s.Client(), s.Close}, nil
}

// Check returns all mistakes in the text of a document, for servers with that configuration. The text may also be a
// configuration of Envoy's rate limit service: then its top level has a domain. Check asks no Redis, so it knows no
// limits that are there, and reads no file.
// Another error is one of the configuration, whose Document is not used. The notes are those of the limits:
// what is valid and may be a mistake.
func Check(text []byte, c Config) (notes limits.Faults, err error) {
	c.Document = func(context.Context) ([]byte, error) { return text, nil }
	c, err = withDefaults(c)
	if err != nil {
		return nil, err
	}
	opened, err := c.openStore(nil)
	if err != nil {
		return nil, fmt.Errorf("headgated: %w", err)
	}
	defer opened.close(context.Background()) //nolint:errcheck // it was not used
	d, err := parseEither(text, c.LimitsKey != "", opened.store, c.rls())
	if err != nil {
		return nil, err
	}
	return faultsOf(d.limits.Warnings), nil
}

// parseEither is parse, also of a configuration of Envoy's rate limit service. That has no limits.
func parseEither(text []byte, elsewhere bool, store *backend.Store, defaults rlsDefaults) (*document, error) {
	if root, err := decode(text); err != nil || !has(&root, wordDomain) {
		return parse(text, elsewhere, store, defaults)
	}
	d := &document{limits: new(limitsdoc.Document), domains: make(map[string]*domain)}
	err := d.addFiles([]settle.File{{Text: text}}, false, store, defaults)
	var file *FileError
	if errors.As(err, &file) {
		return nil, file.Faults
	}
	return d, err
}
