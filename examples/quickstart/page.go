package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/examples/internal/pages"
	"github.com/headgate/headgate/keyfuncs"
)

//go:embed page.html
var pageHTML string

// numbers are those of the limits for a key, for the page.
type numbers struct {
	limit   int64
	window  time.Duration
	sockets int64
}

// numbers asks the limiter, since a document may have another number for a key, and may change.
func (a *app) numbers(ctx context.Context, key string) numbers {
	n := numbers{sockets: a.open}
	d, err := a.limiter.Peek(ctx, key)
	if err != nil {
		return n
	}
	for answer := range d.Answers() {
		n.limit, n.window = answer.Limit, answer.Window
	}
	return n
}

// page serves page.html, with the numbers for the client.
func (a *app) page(w http.ResponseWriter, r *http.Request) {
	n := a.numbers(r.Context(), client(r))
	pages.Write(w, strings.NewReplacer(
		"{{limit}}", strconv.FormatInt(n.limit, 10),
		"{{sockets}}", strconv.FormatInt(n.sockets, 10),
		"{{seconds}}", strconv.FormatFloat(n.window.Seconds(), 'f', -1, 64),
	).Replace(pageHTML))
}

// serveNumbers serves the numbers for the client, which the page asks for to see that they change.
func (a *app) serveNumbers(w http.ResponseWriter, r *http.Request) {
	n := a.numbers(r.Context(), client(r))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	json.NewEncoder(w).Encode(map[string]any{"limit": n.limit, "seconds": n.window.Seconds(), "sockets": n.sockets})
}

// client returns the key of a request.
func client(r *http.Request) string {
	key, _ := keyfuncs.RemoteAddr()(r)
	return key
}
