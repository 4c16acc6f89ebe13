package websocketmw

import (
	"net/http"
	"strings"
	"testing"
)

// The end of a 101 is found however the response is split into writes.
func FuzzResponseScanner(f *testing.F) {
	f.Add(response101+"\x81\x02hi", 7)
	f.Add("HTTP/1.1 101 Switching Protocols\r\n\r\n", 1)
	f.Add("HTTP/1.1 400 Bad Request\r\n\r\n", 3)
	f.Add("HTTP/1.1 101\r\r\n\r\n\r\nx", 2)
	f.Fuzz(func(t *testing.T, response string, cut int) {
		cut = max(1, cut&0xff)
		want := strings.Index(response, headerEnd)
		is101 := strings.HasPrefix(response, statusLine)
		var sc responseScanner
		total, switched := 0, false
		for rest := []byte(response); len(rest) > 0 && !switched; {
			var n int
			n, switched = sc.scan(rest[:min(cut, len(rest))])
			total += n
			rest = rest[n:]
		}
		if switched != (is101 && want >= 0) || switched && total != want+len(headerEnd) {
			t.Errorf("%q: %d bytes, %v", response, total, switched)
		}
		out, added := withFields([]byte(response), http.Header{"Ratelimit": {`"ws";r=1`}})
		if len(out) != len(response)+added {
			t.Errorf("%q became %q", response, out)
		}
	})
}
