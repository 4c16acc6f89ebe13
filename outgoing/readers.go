package outgoing

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Reader tells from a response how long the server wants to get no more requests. The result is 0
// or less if the response does not say so. now is the Date of the response or, without a valid one,
// the time of this process. It must not read the body.
//
// [GitHub], [Discord], [OpenAI] and [Anthropic] read fields that these services define.
// Shopify, Stripe and many others send a Retry-After, and need no Reader.
type Reader func(r *http.Response, now time.Time) time.Duration

// GitHub reads X-RateLimit-Remaining and X-RateLimit-Reset, a time in seconds since 1970 UTC. The service refuses with
// 403 as well as 429. A refusal that says no time asks for a minute; but a 403 that says how many requests are left is
// for want of a permission.
func GitHub(r *http.Response, now time.Time) time.Duration {
	refused := r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusTooManyRequests
	var wait time.Duration
	if refused {
		wait = retryAfter(r.Header, now)
	}
	// No unit is left, whatever the status: the next request would be refused.
	remaining := r.Header.Get("X-RateLimit-Remaining")
	if remaining == "0" {
		if reset, ok := digits(r.Header.Get("X-RateLimit-Reset")); ok {
			return max(wait, time.Unix(min(reset, longestSeconds), 0).Sub(now))
		}
	}
	// Its secondary limits have no fields of their own. Those that are sent are of another limit, with units left.
	permitted := remaining == "" || remaining == "0" || r.StatusCode == http.StatusTooManyRequests
	if refused && permitted && r.Header.Get("Retry-After") == "" {
		return time.Minute
	}
	return wait
}

// Discord reads X-RateLimit-Remaining and X-RateLimit-Reset-After, in seconds with decimals.
// The service has a limit for each route; use a Key that tells routes apart.
func Discord(r *http.Response, _ time.Time) time.Duration {
	if r.Header.Get("X-RateLimit-Remaining") != "0" {
		return 0
	}
	seconds, err := strconv.ParseFloat(r.Header.Get("X-RateLimit-Reset-After"), 64)
	if err != nil || !(seconds > 0) { // nor is it NaN
		return 0
	}
	return time.Duration(math.Ceil(min(seconds, float64(longestSeconds)) * float64(time.Second)))
}

// OpenAI reads how many requests and tokens are left, and when either number is whole again.
// Examples are x-ratelimit-remaining-tokens: 0 and x-ratelimit-reset-tokens: 6m0s. Azure's are read, too: seconds
// without a unit, and the retry-after-ms of a refusal.
func OpenAI(r *http.Response, _ time.Time) time.Duration {
	var wait time.Duration
	if r.StatusCode >= http.StatusBadRequest {
		wait, _ = amount(r.Header.Get("Retry-After-Ms"), time.Millisecond)
	}
	for _, unit := range []string{"Requests", "Tokens"} {
		if r.Header.Get("X-Ratelimit-Remaining-"+unit) != "0" {
			continue
		}
		text := r.Header.Get("X-Ratelimit-Reset-" + unit)
		reset, err := time.ParseDuration(text)
		if err == nil {
			wait = max(wait, reset)
			continue
		}
		reset, ok := amount(text, time.Second)
		if ok {
			wait = max(wait, reset)
		}
	}
	return wait
}

// Anthropic reads how many requests and tokens are left, and when each number is whole again. It
// reads the numbers for all tokens, for input and for output. Examples are
// anthropic-ratelimit-tokens-remaining: 0 and anthropic-ratelimit-tokens-reset:
// 2026-01-02T15:04:05Z, a time by RFC 3339. The service sends a Retry-After with a 429, which
// counts without a Reader.
func Anthropic(r *http.Response, now time.Time) time.Duration {
	var wait time.Duration
	for _, unit := range []string{"Requests", "Tokens", "Input-Tokens", "Output-Tokens"} {
		if r.Header.Get("Anthropic-Ratelimit-"+unit+"-Remaining") != "0" {
			continue
		}
		reset, err := time.Parse(time.RFC3339, r.Header.Get("Anthropic-Ratelimit-"+unit+"-Reset"))
		if err == nil {
			wait = max(wait, reset.Sub(now))
		}
	}
	return wait
}

// longestSeconds is as many as a Duration holds, with room. Since 1970, they end in 2242.
const longestSeconds = int64(1 << 33)

// longestField is how long a RateLimit may be: room for the 1,024 members that RFC 9651 asks for,
// and little work.
const longestField = 64 << 10

// retryAfter returns the longest of the Retry-After fields that are valid: there should be one.
func retryAfter(header http.Header, now time.Time) time.Duration {
	var wait time.Duration
	for _, field := range header.Values("Retry-After") {
		if asked, ok := amount(field, time.Second); ok {
			wait = max(wait, asked)
			continue
		}
		date, err := http.ParseTime(field)
		if err == nil {
			wait = max(wait, date.Sub(now))
		}
	}
	return wait
}

// amount reads a number of units of time. Some servers send decimals, although RFC 9110 has none: they are rounded up,
// since a shorter wait than asked is never right.
func amount(text string, unit time.Duration) (wait time.Duration, ok bool) {
	whole, decimals, hasDecimals := strings.Cut(text, ".")
	n, ok := digits(whole)
	if !ok {
		return 0, false
	}
	wait = time.Duration(min(n, longestSeconds*int64(time.Second/unit))) * unit
	if !hasDecimals {
		return wait, true
	}
	if strings.Trim(decimals, "0") != "" {
		wait += unit
	}
	_, ok = digits(decimals)
	return wait, ok
}

// digits returns a number of digits only. What is larger than an int64 is the largest.
func digits(text string) (n int64, ok bool) {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil || n == 1<<63-1
}

// rateLimit returns the longest t of an item with r=0 of the field RateLimit.
func rateLimit(header http.Header) time.Duration {
	var wait time.Duration
	p := sfv{strings.Join(header.Values("RateLimit"), ",")}
	if len(p.rest) > longestField {
		return 0
	}
	p.spaces(" ")
	for first := true; p.rest != ""; first = false {
		// A fault at the end makes all before it void, too: the field may have been cut off, or put together by
		// somebody who does not know it.
		if !first && !p.comma() {
			return 0
		}
		remaining, reset, ok := p.item()
		if !ok {
			return 0
		}
		if remaining == 0 && reset > 0 {
			wait = max(wait, time.Duration(min(reset, longestSeconds))*time.Second)
		}
		p.spaces(" \t")
	}
	return wait
}

// An sfv is what is left to parse of a structured field (RFC 9651, 4.2), as far as the field
// RateLimit has it: a list of strings with parameters.
type sfv struct{ rest string }

// spaces skips characters of a set.
func (p *sfv) spaces(set string) { p.rest = strings.TrimLeft(p.rest, set) }

// next takes a character if it is the next one.
func (p *sfv) next(char byte) bool {
	if p.rest == "" || p.rest[0] != char {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// comma takes the comma between two members. One at the end is an error.
func (p *sfv) comma() bool {
	if !p.next(',') {
		return false
	}
	p.spaces(" \t")
	return p.rest != ""
}

// item returns the parameters r and t of a string, which is the name of a policy: the units that remain, and the
// seconds until they are reset. It is -1 for one that is missing. Either of another type, or negative, makes the field
// invalid.
func (p *sfv) item() (remaining, reset int64, ok bool) {
	if !p.quoted() {
		return 0, 0, false
	}
	remaining = -1
	reset = -1
	for p.next(';') {
		p.spaces(" ")
		key, n, isInteger, ok := p.pair()
		switch {
		case !ok:
			return 0, 0, false
		case key != "r" && key != "t":
		case !isInteger || n < 0:
			return 0, 0, false
		case key == "r":
			remaining = n
		default:
			reset = n
		}
	}
	return remaining, reset, true
}

// pair takes a key and its value, if there is one, and returns that if it is an integer.
func (p *sfv) pair() (key string, n int64, isInteger, ok bool) {
	key = p.token("abcdefghijklmnopqrstuvwxyz*", "abcdefghijklmnopqrstuvwxyz0123456789_-.*")
	if key == "" || !p.next('=') {
		return key, 0, false, key != ""
	}
	n, isInteger, ok = p.value()
	return key, n, isInteger, ok
}

// token takes what begins with one of a set and goes on with those of another.
func (p *sfv) token(begin, more string) string {
	if p.rest == "" || strings.IndexByte(begin, p.rest[0]) < 0 {
		return ""
	}
	rest := strings.TrimLeft(p.rest[1:], more)
	token := p.rest[:len(p.rest)-len(rest)]
	p.rest = rest
	return token
}

// quoted takes a string.
func (p *sfv) quoted() bool {
	if !p.next('"') {
		return false
	}
	for i := 0; i < len(p.rest); i++ {
		char := p.rest[i]
		switch {
		case char == '"':
			p.rest = p.rest[i+1:]
			return true
		case char == '\\': // only these two are escaped
			i++
			if i == len(p.rest) || p.rest[i] != '"' && p.rest[i] != '\\' {
				return false
			}
		case char < ' ' || char > '~':
			return false
		}
	}
	return false
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// value takes the value of a parameter, and returns it if it is an integer. The others must be taken, too: a parameter
// that nobody knows may be of any type, and may have what looks like r=0 in it.
func (p *sfv) value() (n int64, isInteger, ok bool) {
	if p.rest == "" {
		return 0, false, false
	}
	first := p.rest[0]
	switch {
	case first == '"':
		return 0, false, p.quoted()
	case first == ':': // bytes
		end := strings.IndexByte(p.rest[1:], ':')
		if end < 0 || strings.Trim(p.rest[1:1+end], letters+"0123456789+/=") != "" {
			return 0, false, false
		}
		p.rest = p.rest[end+2:]
		return 0, false, true
	case first == '?': // boolean
		ok := p.next('?') && (p.next('0') || p.next('1'))
		return 0, false, ok
	case first == '-' || first >= '0' && first <= '9':
		return p.number()
	case first == '@': // a date
		_ = p.next('@')
		_, isInteger, ok := p.number()
		return 0, false, ok && isInteger
	case first == '%': // a display string
		return 0, false, p.next('%') && p.quoted()
	default: // a token
		ok := p.token(letters+"*", letters+"0123456789!#$%&'*+-.^_`|~:/") != ""
		return 0, false, ok
	}
}

// number takes an integer of up to 15 digits, or a decimal of up to 12 and 3.
func (p *sfv) number() (n int64, isInteger, ok bool) {
	negative := p.next('-')
	whole := p.token("0123456789", "0123456789")
	if !p.next('.') {
		if whole == "" || len(whole) > 15 {
			return 0, false, false
		}
		n, _ = digits(whole)
		if negative {
			n = -n
		}
		return n, true, true
	}
	decimals := p.token("0123456789", "0123456789")
	isWhole := whole != "" && len(whole) <= 12
	return 0, false, isWhole && decimals != "" && len(decimals) <= 3
}
