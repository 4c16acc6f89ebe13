package headgated

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/lease"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/core/stats"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/settle"
)

// openStore returns the store of a configuration with its defaults, and the client of its Redis, or nil.
// Nothing is sent there. seen is nil if nothing is to be counted.
func (c *Config) openStore(seen *stats.Stats) (core.Store, redis.UniversalClient, error) {
	var observer *core.Observer
	if seen != nil {
		observer = seen.Observer()
	}
	if c.Redis == "" {
		memory := memstore.New(memstore.Config{Observer: observer})
		if seen != nil {
			seen.AddMemory("limits", memory)
		}
		return memory, nil, nil
	}
	shared, err := redisstore.OpenURL(c.Redis, redisstore.Config{
		Prefix: c.RedisPrefix, Secret: c.Secret, Timeout: c.Timeout, Failure: c.Failure, Servers: c.Servers, Observer: observer,
	})
	if err != nil {
		return nil, nil, err
	}
	if c.Lease == 0 {
		return shared, shared.Client(), nil
	}
	leased, err := lease.New(shared, lease.Config{For: c.Lease})
	if err != nil {
		return nil, nil, errors.Join(err, shared.Client().Close())
	}
	return leased, shared.Client(), nil
}

// Check returns all mistakes in the text of a document, for servers with that configuration, as
// [limits.Faults]. The text may also be a configuration of Envoy's rate limit service: then its top
// level has a domain. Check asks no Redis, so it knows no limits that are there, and reads no file.
// Another error is one of the configuration, whose Document is not used. The notes are those of the limits:
// see [limits.Document.Notes].
func Check(text []byte, c Config) (notes limits.Faults, err error) {
	c.Document = limits.Bytes(text)
	c, err = withDefaults(c)
	if err != nil {
		return nil, err
	}
	store, client, err := c.openStore(nil)
	if err != nil {
		return nil, fmt.Errorf("headgated: %w", err)
	}
	if client != nil {
		defer client.Close() //nolint:errcheck // it was not used
	}
	d, err := parseEither(text, c.LimitsKey != "", store, c.rls())
	if err != nil || d.limits == nil {
		return nil, err
	}
	return d.limits.Notes(), d.limits.Check(limits.Program{NoSlots: true}, store)
}

// parseEither is parse, also of a configuration of Envoy's rate limit service. That has no limits.
func parseEither(text []byte, elsewhere bool, store core.Store, defaults rlsDefaults) (*document, error) {
	if root, err := decode(text); err != nil || !has(&root, wordDomain) {
		return parse(text, elsewhere, store, defaults)
	}
	d := &document{domains: make(map[string]*domain)}
	err := d.addFiles([]settle.File{{Text: text}}, nil, store, defaults)
	var file *FileError
	if errors.As(err, &file) {
		return nil, file.Faults
	}
	return d, err
}
