package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

//go:embed page.html
var pageHTML string

// page serves page.html. Its Content-Security-Policy allows only the page's own script and
// style, and requests to this server.
func page(limit int64, window time.Duration, sockets int64) http.Handler {
	html := strings.NewReplacer(
		"\r\n", "\n", // browsers hash the normalized text
		"{{limit}}", strconv.FormatInt(limit, 10),
		"{{sockets}}", strconv.FormatInt(sockets, 10),
		"{{seconds}}", strconv.FormatFloat(window.Seconds(), 'f', -1, 64),
	).Replace(pageHTML)
	policy := "default-src 'none'; connect-src 'self'; img-src data:" +
		"; script-src " + hashOf(html, "script") +
		"; style-src " + hashOf(html, "style") +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-cache")
		io.WriteString(w, html)
	})
}

// hashOf returns the hash of the page's only element with that tag, as a source for a
// Content-Security-Policy.
func hashOf(html, tag string) string {
	_, html, _ = strings.Cut(html, "<"+tag+">")
	text, _, _ := strings.Cut(html, "</"+tag+">")
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
