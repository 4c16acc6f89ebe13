package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/redisdoc"
)

// A fleet is the servers that shall take a document.
type fleet []redisdoc.Server

// fleetOf returns the servers that have told of themselves, or one with that kind of store if there
// are none.
func fleetOf(servers []redisdoc.Server, kind string) (fleet, error) {
	if _, err := emptyStore(kind); err != nil {
		return nil, errors.New("-store is redis, or memory with its MaxBytes if it is not the default")
	}
	if len(servers) == 0 {
		return fleet{{Program: limits.Program{Store: kind}}}, nil
	}
	return servers, nil
}

// servers returns the servers that have told a Redis of themselves.
func (r *connection) servers(ctx context.Context) ([]redisdoc.Server, error) {
	client, err := r.connect()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	source, err := redisdoc.New(client, redisdoc.Config{Key: r.key})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return source.Servers(ctx)
}

// refuse returns why servers would refuse a document, each fault once.
func (all fleet) refuse(d *limits.Document) limits.Faults {
	var faults limits.Faults
	seen := make(map[string]bool)
	for _, one := range all {
		store, err := emptyStore(one.Program.Store)
		if err != nil {
			store = nil // it tells none, or one that this command does not know
		}
		var found limits.Faults
		if err := d.Check(one.Program, store); !errors.As(err, &found) {
			continue
		}
		for _, f := range found {
			if seen[f.Error()] {
				continue
			}
			seen[f.Error()] = true
			if one.Instance != "" {
				f.Err = fmt.Errorf("the server %s: %w", one.Instance, f.Err)
			}
			faults = append(faults, f)
		}
	}
	return faults
}

// emptyStore returns a store that takes the same as those of a kind, and calls no server.
func emptyStore(kind string) (core.Store, error) {
	name, number, _ := strings.Cut(kind, " ")
	var n int64
	if number != "" {
		var err error
		if n, err = strconv.ParseInt(number, 10, 64); err != nil {
			return nil, errors.New("what follows is no number")
		}
	}
	switch name {
	case "memory":
		return memstore.New(memstore.Config{MaxBytes: n}), nil
	case "redis":
		nowhere := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, MaxRetries: -1})
		return redisstore.New(nowhere, redisstore.Config{Servers: int(n)})
	}
	return nil, errors.New("there is no such store")
}
