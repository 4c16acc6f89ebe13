package websocketmw

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silentLog{}) // tests break connections on purpose
	m.Run()
}

type silentLog struct{}

func (silentLog) Printf(context.Context, string, ...any) {}
