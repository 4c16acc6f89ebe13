package nethttp_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/nethttp"
)

func TestVerdictOf(t *testing.T) {
	limiter := core.Must(core.New(memstore.New(memstore.Config{}), `a "b"`, core.SlidingLog(core.Rate{Events: 1, Per: time.Hour})))
	for _, status := range []int{0, 429, 503} {
		d, err := limiter.Allow(t.Context(), "anna")
		if status == 503 {
			d, err = core.Decision{}, core.ErrUnavailable
		}
		v, h := nethttp.VerdictOf(d, err), http.Header{}
		v.SetFields(h)
		v.SetFields(h) // twice changes nothing
		fields := h.Get("RateLimit-Policy") + " " + h.Get("RateLimit") + " " + h.Get("Retry-After") + " " + h.Get("Cache-Control")
		want, body := map[int]string{
			0:   `"a \"b\"";q=1;w=3600 "a \"b\"";r=0;t=3600  `,
			429: `"a \"b\"";q=1;w=3600 "a \"b\"";r=0;t=3600 3600 no-store`,
			503: `  5 no-store`,
		}[status], map[int]string{429: `"violated-policies":["a \"b\""]}`, 503: `"status":503}`}[status]
		if v.Status() != status || !errors.Is(v.Err, err) || fields != want || !strings.HasSuffix(string(v.Problem()), body) || (body == "") != (v.Problem() == nil) {
			t.Errorf("%d: %d %q, want %q; %s", status, v.Status(), fields, want, v.Problem())
		}
	}
}
