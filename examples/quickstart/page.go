package main

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/headgate/headgate/examples/internal/pages"
	"github.com/headgate/headgate/keyfuncs"
)

//go:embed page.html
var pageHTML string

// page serves page.html, with the numbers for the client.
func page(numbers func(key string) numbers) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := numbers(client(r))
		pages.Write(w, strings.NewReplacer(
			"{{limit}}", strconv.FormatInt(n.limit, 10),
			"{{sockets}}", strconv.FormatInt(n.sockets, 10),
			"{{seconds}}", strconv.FormatFloat(n.window.Seconds(), 'f', -1, 64),
		).Replace(pageHTML))
	})
}

// numbersOf serves the numbers for the client, which the page asks for to see that they change.
func numbersOf(numbers func(key string) numbers) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := numbers(client(r))
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		json.NewEncoder(w).Encode(map[string]any{"limit": n.limit, "seconds": n.window.Seconds(), "sockets": n.sockets})
	})
}

// client returns the key of a request.
func client(r *http.Request) string {
	key, _ := keyfuncs.RemoteAddr()(r)
	return key
}
