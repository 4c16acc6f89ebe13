// The 101 of a library: where it ends, and where the guard's fields go. It may not write it.

package frames

import (
	"bytes"
	"net/http"
	"strings"
)

// A Response finds the end of the 101 that a library writes on the connection itself: after it come
// frames. The zero Response stands before its first byte.
type Response struct {
	seen  int    // bytes of statusLine compared so far
	other bool   // it is not a 101
	tail  int    // bytes of headerEnd that precede the next byte
	text  []byte // the response so far
}

const (
	statusLine = "HTTP/1.1 101"
	headerEnd  = "\r\n\r\n"
)

// Begun reports whether a byte was scanned.
func (sc *Response) Begun() bool { return sc.seen > 0 }

// Scan returns the number of bytes of p that belong to the response, and whether it is
// a 101 that ends there.
func (sc *Response) Scan(p []byte) (n int, switched bool) {
	defer func() {
		if sc.other {
			sc.text = nil
		} else {
			sc.text = append(sc.text, p[:n]...)
		}
	}()
	for n < len(p) && !sc.other {
		b := p[n]
		n++
		if sc.seen < len(statusLine) {
			sc.other = b != statusLine[sc.seen]
			sc.seen++
			continue
		}
		switch b {
		case headerEnd[sc.tail]:
			sc.tail++
		case headerEnd[0]:
			sc.tail = 1
		default:
			sc.tail = 0
		}
		if sc.tail == len(headerEnd) {
			return n, true
		}
	}
	return len(p), false
}

// Extensions returns those of a complete 101.
func (sc *Response) Extensions() Extensions {
	const field = "Sec-WebSocket-Extensions:"
	var all Extensions
	for line := range bytes.SplitSeq(sc.text, []byte("\r\n")) {
		if len(line) > len(field) && strings.EqualFold(string(line[:len(field)]), field) {
			all |= ExtensionsOf(string(line[len(field):]))
		}
	}
	return all
}

// WithFields returns a 101, or its first part, with the guard's fields inserted after
// the status line, and the number of bytes inserted: none if the response has RateLimit
// fields, because the library copied them from the header.
func WithFields(p []byte, own http.Header) (out []byte, added int) {
	end := bytes.Index(p, []byte("\r\n"))
	if len(own) == 0 || end < 0 || !bytes.HasPrefix(p, []byte(statusLine)) || bytes.Contains(bytes.ToLower(p), []byte("\r\nratelimit")) {
		return p, 0
	}
	var fields bytes.Buffer
	_ = own.Write(&fields)
	out = make([]byte, 0, len(p)+fields.Len())
	out = append(out, p[:end+2]...)
	out = append(out, fields.Bytes()...)
	return append(out, p[end+2:]...), fields.Len()
}
