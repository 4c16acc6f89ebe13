// Refusals that browsers can read. A refuser owns the limits on them, and a connection only for as long
// as it refuses. It may not touch a socket.

package websocketmw

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/internal/record"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const (
	inBandRate    = 100         // refusals in band per second
	inBandBurst   = 10          // of a key, which then gets one a second
	inBandBytes   = 1 << 20     // of memory for the keys
	inBandTimeout = time.Second // how long one may take
	inBandRead    = 512         // bytes of the answer to read at once
)

// A refuser makes refusals in band, and limits the refusals in band: all, and those of a key, so that one client does
// not leave others without.
type refuser struct{ all, key *core.Limiter }

func newRefuser() (*refuser, error) {
	store := memstore.New(memstore.Config{MaxBytes: inBandBytes})
	all, err := core.New(store, "all", core.TokenBucket(core.PerSecond(inBandRate), inBandRate))
	if err != nil {
		return nil, err
	}
	key, err := core.New(store, "key", core.TokenBucket(core.PerSecond(1), inBandBurst))
	return &refuser{all, key}, err
}

// allows reports whether a refusal may be in band. The key is empty if it is not known.
func (b *refuser) allows(ctx context.Context, key string) bool {
	charges := []core.Charge{{Limiter: b.key, Key: key, N: 1}, {Limiter: b.all, Key: "all", N: 1}}
	if key == "" {
		charges = charges[1:]
	}
	d, err := core.AllowAll(ctx, charges...)
	return err == nil && d.Allowed
}

// refuse accepts an upgrade and closes it with the reason of the refusal, which a
// browser gives to scripts. It reports whether it did.
func (b *refuser) refuse(w http.ResponseWriter, r *http.Request, v nethttp.Verdict) bool {
	s := v.Status()
	if b == nil || s != http.StatusTooManyRequests && s != http.StatusServiceUnavailable || r.Header.Get("Origin") == "" ||
		classify(r) != upgrade || !record.CanHijack(w) {
		return false
	}
	a, _ := v.Attempt().(*attempt)
	if a == nil || !a.inBand || !b.allows(r.Context(), a.share.Reveal()) {
		return false
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return false
	}
	defer conn.Close() //nolint:errcheck // nothing to do about it
	_ = conn.SetDeadline(time.Now().Add(inBandTimeout))
	if _, err := conn.Write(append(acceptance(r, v), frames.Close(frames.CodeTryAgain, closeReason(v))...)); err != nil || rw == nil {
		return true
	}
	// Read the answer: closing a TCP connection with unread data resets it, and the peer
	// may lose the Close frame.
	var answer frames.Walker
	read := make([]byte, inBandRead)
	for {
		n, err := rw.Read(read)
		if closes, _ := answer.Walk(read[:n]); closes || err != nil {
			return true
		}
	}
}

// acceptance returns the 101 (RFC 6455, section 4.2.2). Browsers reject it without one of the
// protocols that they offered.
func acceptance(r *http.Request, v nethttp.Verdict) []byte {
	const guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
	sum := sha1.Sum([]byte(strings.Trim(r.Header.Get("Sec-Websocket-Key"), " \t") + guid))
	h := make(http.Header)
	v.SetFields(h)
	h.Del("Cache-Control")
	h.Set("Sec-Websocket-Accept", base64.StdEncoding.EncodeToString(sum[:]))
	first, _, _ := strings.Cut(r.Header.Get("Sec-Websocket-Protocol"), ",")
	if first = strings.Trim(first, " \t"); first != "" && !strings.ContainsAny(first, " \t\"(),/:;<=>?@[\\]{}") {
		h.Set("Sec-Websocket-Protocol", first)
	}
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
	_ = h.Write(&b)
	b.WriteString("\r\n")
	return b.Bytes()
}

// closeReason returns the reason for the Close frame, at most maxReason bytes.
func closeReason(v nethttp.Verdict) string {
	what := "not available"
	if o, ok := v.Full(); ok && v.Status() == http.StatusTooManyRequests {
		what = fmt.Sprintf("limit %q is reached", o.Slots)
	}
	h := make(http.Header)
	v.SetFields(h)
	return fmt.Sprintf("%s; retry in %s s", what, h.Get("Retry-After"))
}
