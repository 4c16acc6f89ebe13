package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/keyfuncs"
)

// A request is a line of an access log.
type request struct {
	at    time.Time
	whole bool // the log has whole seconds
	key   string
	plan  string
	cost  int64 // in units, of the field that -cost names
}

// A logReader reads access logs: common or combined format, or a JSON object in each line.
type logReader struct {
	keyField, planField, timeField, costField string

	lines   int      // read
	broken  int      // that are no requests
	reasons []string // of the first of these

	address keyfuncs.Func     // the key of an address
	texts   map[string]string // keys and plans: one of each
}

func newLogReader() *logReader {
	return &logReader{address: keyfuncs.RemoteAddr(), texts: make(map[string]string)}
}

// maxLine is the length of the longest line that can be a request.
const maxLine = 1 << 20

// next returns a function that returns the requests of a log, one after the other, and false at
// the end. A line that is no request is counted.
func (r *logReader) next(name string, in io.Reader) func() (request, bool, error) {
	lines, number, ended := bufio.NewReaderSize(in, 1<<16), 0, false
	return func() (request, bool, error) {
		for !ended {
			line, long, err := readLine(lines)
			if ended = errors.Is(err, io.EOF); err != nil && !ended {
				return request{}, false, fmt.Errorf("%s: %w", name, err)
			}
			number++
			if len(bytes.TrimSpace(line)) == 0 && !long {
				continue // an empty line is nothing
			}
			r.lines++
			q, fault := r.request(line)
			if long {
				fault = fmt.Errorf("it is longer than %d bytes", maxLine)
			}
			if fault == nil {
				q.key, q.plan = r.one(r.group(q.key)), r.one(q.plan)
				return q, true, nil
			}
			r.broken++
			if len(r.reasons) < 5 {
				r.reasons = append(r.reasons, fmt.Sprintf("line %d: %v", number, fault))
			}
		}
		return request{}, false, nil
	}
}

// group returns the key that keyfuncs has for an address: an IPv6 address is one of its network.
// What is no address is its own key. A port is no part of an address.
func (r *logReader) group(key string) string {
	if with, err := netip.ParseAddrPort(key); err == nil {
		key = with.Addr().String()
	}
	if strings.Count(key, ":") < 2 {
		return key // an IPv4 address, or none
	}
	grouped, err := r.address(&http.Request{RemoteAddr: "[" + strings.Trim(key, "[]") + "]:0"})
	if err != nil {
		return key
	}
	return grouped
}

// one returns the text that stands for all that are equal. It is not a part of a line.
func (r *logReader) one(text string) string {
	if one, ok := r.texts[text]; ok {
		return one
	}
	text = strings.Clone(text)
	r.texts[text] = text
	return text
}

// readLine reads a line, and the beginning only of a long one.
func readLine(in *bufio.Reader) (line []byte, long bool, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) <= maxLine {
			line = append(line, part...)
		} else {
			long = true
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(line, "\r\n"), long, err
		}
	}
}

// openLog opens a log, which may be compressed by gzip.
func openLog(name string, stdin io.Reader) (in io.Reader, closer func(), err error) {
	closer = func() {}
	in = stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, nil, err
		}
		closer = func() { _ = f.Close() }
		in = f
	}
	b := bufio.NewReaderSize(in, 1<<16)
	if head, _ := b.Peek(2); string(head) == "\x1f\x8b" {
		z, err := gzip.NewReader(b)
		if err != nil {
			closer()
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		return z, closer, nil
	}
	return b, closer, nil
}

// request returns the request of a line.
func (r *logReader) request(line []byte) (request, error) {
	line = bytes.TrimSpace(line)
	if len(line) > 0 && line[0] == '{' {
		return r.object(line)
	}
	return r.common(string(line))
}

// common is the common log format, and what may follow it in the combined one: host, identity,
// user, [time], "request", status, bytes, "referer", "user agent". What Apache and nginx escape in
// quotes are quotes and backslashes.
var common = regexp.MustCompile(`^(\S+) (\S+) (.*?) \[([^\]]+)\] "((?:[^"\\]|\\.)*)" (\d{3}|-) (\d+|-)` +
	`(?: "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)")?(?: .*)?$`)

// The names of the fields of the common and the combined log format.
var commonFields = []string{"host", "ident", "user", "time", "request", "status", "bytes", "referer", "agent"}

// commonTime is the time of the common log format.
const commonTime = "02/Jan/2006:15:04:05 -0700"

func (r *logReader) common(line string) (request, error) {
	m := common.FindStringSubmatch(line)
	if m == nil {
		return request{}, errors.New("it is neither of the common or combined log format, nor a JSON object")
	}
	at, err := time.Parse(commonTime, m[4])
	if err != nil {
		return request{}, errors.New("its time is not such as 10/Oct/2026:13:55:36 +0000")
	}
	field := func(name string) (string, error) {
		switch i := slices.Index(commonFields, name); {
		case i >= 0:
			return m[i+1], nil
		case name == "method" || name == "path":
			words := strings.Fields(m[5])
			if len(words) < 2 {
				return "", fmt.Errorf("its request has no %s", name)
			}
			path, _, _ := strings.Cut(words[1], "?")
			return map[string]string{"method": words[0], "path": path}[name], nil
		}
		return "", fmt.Errorf("there is no field %q: one of %s, method, path", name, strings.Join(commonFields, ", "))
	}
	q := request{at: at, whole: true}
	if q.key, err = field(orElse(r.keyField, "host")); err != nil {
		return q, err
	}
	if q.key == "-" || q.key == "" {
		return q, errors.New("its key is empty")
	}
	if r.planField != "" {
		if q.plan, err = field(r.planField); err != nil {
			return q, err
		}
		if q.plan == "-" {
			q.plan = ""
		}
	}
	if r.costField == "" {
		return q, nil
	}
	cost, err := field(r.costField)
	if err != nil {
		return q, err
	}
	if cost == "-" { // no bytes
		cost = "0"
	}
	q.cost, err = units(cost)
	return q, err
}

// units reads a number of units.
func units(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > step.MaxInt {
		return 0, errors.New("its cost is not a whole number from 0 to 2^53-1")
	}
	return n, nil
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// object reads a line of JSON.
func (r *logReader) object(line []byte) (q request, err error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var fields map[string]any
	if err := d.Decode(&fields); err != nil {
		return q, errors.New("it is not an object of JSON")
	}
	v, ok := first(fields, r.timeField, "time", "ts", "timestamp", "@timestamp", "time_local", "time_iso8601", "StartUTC", "msec", "date")
	if !ok {
		return q, errors.New("it has no time: name its field with -time")
	}
	if q.at, q.whole, ok = instant(v); !ok {
		return q, errors.New("its time is neither RFC 3339, nor of the common log format, nor a number of seconds, milliseconds, microseconds or nanoseconds since 1970")
	}
	v, ok = first(fields, r.keyField, "remote_addr", "remote_ip", "client_ip", "ClientHost", "host", "ip", "request.remote_ip", "request.client_ip")
	if !ok {
		return q, errors.New("it has no key: name its field with -key")
	}
	if q.key = text(v); q.key == "" {
		return q, errors.New("its key is empty")
	}
	if r.planField != "" {
		v, _ := first(fields, r.planField)
		q.plan = text(v)
	}
	if r.costField != "" {
		v, _ := first(fields, r.costField)
		q.cost, err = units(text(v))
	}
	return q, err
}

// first returns the value of the field, or if none is named the first that there is of others.
func first(fields map[string]any, name string, others ...string) (any, bool) {
	if name != "" {
		others = []string{name}
	}
	for _, name := range others {
		if v, ok := lookUp(fields, name); ok {
			return v, true
		}
	}
	return nil, false
}

// lookUp returns the value of a field, also of one in an object: request.remote_ip.
func lookUp(fields map[string]any, name string) (any, bool) {
	if v, ok := fields[name]; ok {
		return v, true
	}
	outer, inner, ok := strings.Cut(name, ".")
	if !ok {
		return nil, false
	}
	object, _ := fields[outer].(map[string]any)
	return lookUp(object, inner)
}

// text returns a value as a key.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	}
	return ""
}

// instant reads a time, and reports whether it is in whole seconds.
func instant(v any) (at time.Time, whole, ok bool) {
	s := text(v)
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999-0700", "2006-01-02 15:04:05.999999999", commonTime} {
		if at, err := time.Parse(layout, s); err == nil {
			return at, !strings.ContainsAny(s, ".,"), true
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || n < 0 {
		return at, false, false
	}
	for range 3 { // more than 3000 years of seconds are milliseconds, and so on
		if n > 1e11 {
			n /= 1e3
		}
	}
	if n > 1e11 {
		return at, false, false
	}
	micro := int64(math.Round(n * 1e6))
	return time.UnixMicro(micro), !strings.ContainsAny(s, ".eE") && len(s) <= 11, true
}
