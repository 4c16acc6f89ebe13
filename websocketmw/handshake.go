package websocketmw

import (
	"bytes"
	"net/http"
)

// A handshake follows the response that a library writes on the connection itself,
// until the frames begin.
type handshake struct {
	seen  int  // bytes of the status line that were looked at
	other bool // it is no 101
	tail  int  // bytes of the end of the header that were just there
}

const (
	statusLine = "HTTP/1.1 101"
	headerEnd  = "\r\n\r\n"
)

// follow returns the number of bytes of p that are of the response, and whether it is
// a 101 that ends there.
func (h *handshake) follow(p []byte) (n int, switched bool) {
	for n < len(p) && !h.other {
		b := p[n]
		n++
		if h.seen < len(statusLine) {
			h.other = b != statusLine[h.seen]
			h.seen++
			continue
		}
		switch b {
		case headerEnd[h.tail]:
			h.tail++
		case headerEnd[0]:
			h.tail = 1
		default:
			h.tail = 0
		}
		if h.tail == len(headerEnd) {
			return n, true
		}
	}
	return len(p), false
}

// withFields returns the response 101, or the beginning of it, with the guard's fields
// after its status line, and how many bytes they are. A library that was given them
// has them already.
func withFields(p []byte, own http.Header) (out []byte, added int) {
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
