package lease

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // tests break connections on purpose
	proctest.Main(m, proctest.Funcs{"spender": spender})
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// overMiniredis returns a store that remembers no refusals: a test moves the clock.
func overMiniredis(t *testing.T, addr string, o *core.Observer) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{addr}}, redisstore.Config{
		RefusalTTL: -1, Timeout: 20 * time.Second, Failure: redisstore.FailClosed, Observer: o,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Client().Close() })
	return s
}
