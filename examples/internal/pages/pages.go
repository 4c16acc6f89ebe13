// Package pages serves the pages of the examples, which have one look.
package pages

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
)

//go:embed house.css
var house string

// Write writes a page with the style of the house before its own, for which it needs an element
// style without attributes. Its Content-Security-Policy allows only that and the page's own
// script, and requests to this server.
func Write(w http.ResponseWriter, html string) {
	html = strings.Replace(html, "<style>", "<style>\n"+house, 1)
	html = strings.ReplaceAll(html, "\r\n", "\n") // browsers hash the normalized text
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; img-src data:"+
		"; script-src "+source(html, "script")+
		"; style-src "+source(html, "style")+
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache")
	_, _ = io.WriteString(w, html)
}

// source returns the hash of the page's only element with that tag, as a source for a
// Content-Security-Policy.
func source(html, tag string) string {
	_, html, found := strings.Cut(html, "<"+tag+">")
	if !found {
		return "'none'"
	}
	text, _, _ := strings.Cut(html, "</"+tag+">")
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
