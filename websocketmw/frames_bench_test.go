package websocketmw

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
)

// A million frames, in reads of 4 KiB, by the size of their payload, and with a limit that admits
// them.
func BenchmarkMillionFrames(b *testing.B) {
	const frames = 1_000_000
	l, err := core.New(memstore.New(memstore.Config{}), "sent", core.TokenBucket(core.PerSecond(1_000_000), 1_000_000_000))
	if err != nil {
		b.Fatal(err)
	}
	for name, config := range map[string]Config{"Default": {}, "Inbound": {Inbound: []Inbound{{Limiter: l}}}} {
		for _, size := range []int{1, 100, 1000} {
			frame := masked(0x82, strings.Repeat("x", size))
			each := max(1, 4096/len(frame))
			b.Run(name+"/"+strconv.Itoa(size), func(b *testing.B) {
				benchGuard(b, config).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					c, _ := take(w)
					defer c.Close()
					p := make([]byte, 4096)
					for b.Loop() {
						for range frames / each {
							_, _ = c.Read(p)
						}
					}
				})).ServeHTTP(newOnIdle([]byte(strings.Repeat(string(frame), each))), upgradeRequest())
			})
		}
	}
}
