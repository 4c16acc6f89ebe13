// Package redisdoc keeps a document of package limits in Redis, for all servers together: they ask for it each second.
package redisdoc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	oldlimits "github.com/headgate/headgate/internal/old/limits"
	old "github.com/headgate/headgate/internal/old/limits/redisdoc"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
	"github.com/headgate/headgate/limits"
)

// Open returns a book of the document under a key, which Push or the command headgate push has written: see
// [limits.Open]. It tells the others under "KEY:servers" which document this server has. On a Cluster the key needs a
// hash tag, such as "{shop}:limits".
func Open(ctx context.Context, s core.Store, client redis.UniversalClient, key string, c limits.Config) (*limits.Book, error) {
	source, err := old.New(client, old.Config{Key: key})
	if err != nil {
		return nil, err
	}
	return limits.OpenSource(ctx, s, source, c)
}

// pollEvery is how often Push looks at what servers have.
const pollEvery = 200 * time.Millisecond

// Push writes a document, in YAML or JSON, under a key, and waits until all servers that use it have it in force. It is
// refused if it has faults, or if a server has told that it would refuse it, because its program uses limits that the
// document lacks. If the context ends first, the error names the servers that do not have it yet.
func Push(ctx context.Context, client redis.UniversalClient, key string, document []byte) error {
	source, err := old.New(client, old.Config{Key: key})
	if err != nil {
		return err
	}
	d, err := oldlimits.Parse(document, yamldoc.Decode)
	if err != nil {
		return fmt.Errorf("headgate: redisdoc: %w", err)
	}
	_, replaces, err := source.Current(ctx)
	if err != nil && !errors.Is(err, old.ErrTorn) {
		return err
	}
	servers, err := source.Servers(ctx)
	if err != nil {
		return err
	}
	for _, one := range servers {
		if err := d.Check(one.Program, nil); err != nil {
			return fmt.Errorf("headgate: redisdoc: server %s would refuse the document: %w", one.Instance, err)
		}
	}
	version, err := source.Push(ctx, d, replaces)
	if err != nil {
		return err
	}
	return wait(ctx, source, version)
}

// wait waits until no server has an older document.
func wait(ctx context.Context, source *old.Source, version int64) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		servers, err := source.Servers(ctx)
		if err != nil {
			return err
		}
		var behind []error
		for _, one := range servers {
			switch {
			case one.Found >= version && one.Err != "":
				return fmt.Errorf("headgate: redisdoc: server %s refuses the document: %s", one.Instance, one.Err)
			case one.Found < version:
				behind = append(behind, fmt.Errorf("headgate: redisdoc: server %s does not have the document yet", one.Instance))
			}
		}
		if len(behind) == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.Join(append(behind, context.Cause(ctx))...)
		}
	}
}
