package main

import (
	_ "embed"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/examples/internal/pages"
)

//go:embed page.html
var pageHTML string

// page serves page.html.
func page(limit int64, window time.Duration, sockets int64) http.Handler {
	html := strings.NewReplacer(
		"{{limit}}", strconv.FormatInt(limit, 10),
		"{{sockets}}", strconv.FormatInt(sockets, 10),
		"{{seconds}}", strconv.FormatFloat(window.Seconds(), 'f', -1, 64),
	).Replace(pageHTML)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { pages.Write(w, html) })
}
