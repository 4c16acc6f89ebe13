package outgoing

import (
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// origin is the Key of requests to one server. It is that of RFC 6454, 6.2, except that names
// which are not ASCII stay as they are. No two servers have one: a host with a colon is in
// brackets, so that the last colon after it is that of the port.
func origin(r *http.Request) (string, error) {
	if r.URL == nil || r.URL.Host == "" {
		return "", errors.New("the URL has no host")
	}
	scheme := asciiLower(r.URL.Scheme)
	host := r.URL.Hostname()
	port := r.URL.Port()
	// An address or a name may be written in several ways, and all of them are one server.
	address, err := netip.ParseAddr(host)
	if err == nil {
		host = address.Unmap().String() // a zone keeps its case
	} else {
		host = asciiLower(host)
		if len(host) > 1 {
			host = strings.TrimSuffix(host, ".")
		}
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err == nil {
		port = strconv.FormatUint(n, 10) // without leading zeros
	}
	service := scheme + ":" + port
	if port == "" || service == "http:80" || service == "https:443" {
		return scheme + "://" + host, nil
	}
	return scheme + "://" + host + ":" + port, nil
}

// asciiLower leaves bytes alone that strings.ToLower would make equal: those that are not valid
// UTF-8, and the Kelvin sign and k.
func asciiLower(text string) string {
	lower := []byte(text)
	for i, char := range lower {
		if 'A' <= char && char <= 'Z' {
			lower[i] = char + 'a' - 'A'
		}
	}
	return string(lower)
}
