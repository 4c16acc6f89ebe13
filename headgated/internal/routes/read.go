package routes

import (
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/headgate/headgate/internal/yamltree"
	"github.com/headgate/headgate/keyfuncs"
)

// maxCharges is how many charges a route has: core takes 64 policies in one call, and a limit has 8 at most.
const maxCharges = 8

// MaxUnits is the largest number of units.
const MaxUnits = 1<<53 - 1

// These are the forms of routes in a document.
type (
	routeText struct {
		Host, Method yamltree.Texts
		Path         *yamltree.At[string]
		Charge       []yamltree.At[chargeText] // nil: there is none
		Fields       *bool                     // whether answers have the RateLimit fields
	}
	chargeText struct {
		Limit       yamltree.At[string]
		Key         yamltree.Texts
		Units       *yamltree.At[int64]
		Plan        yamltree.At[string]
		ObserveOnly bool `yaml:"observe_only"`
	}
)

// Read reads the routes of a document, and the networks of the proxies that it trusts. Either may be nil. What is wrong
// is in the reader.
func Read(from *yamltree.Reader, trusted, routes *yaml.Node) *Table {
	// The peer of a unix socket is always trusted: its permissions say who may connect.
	reads := &reader{from, []string{keyfuncs.Unix}}
	table := new(Table)
	var networks []yamltree.At[string]
	reads.Decode(trusted, &networks)
	reads.each(networks, func(text string) error {
		err := keyfuncs.CheckNetworks(text)
		if err == nil {
			reads.trusted = append(reads.trusted, text)
			return nil
		}
		return errors.New(strings.TrimPrefix(err.Error(), "headgate: keyfuncs: "))
	})
	table.Trusted = TrustedPeer(reads.trusted)
	var all []yamltree.At[routeText]
	reads.Decode(routes, &all)
	// A route is compared with those before it: the first that matches counts.
	for i, of := range all {
		one := reads.route(of.Place, &of.Value)
		one.Name = "routes[" + strconv.Itoa(i) + "]"
		one.Place = of.Place
		reads.reached(one, table.Routes)
		table.add(one)
	}
	if len(all) > 0 {
		reads.last(table.Routes, all[len(all)-1].Place)
	}
	return table
}

// add adds a route, and notes which fields of a proxy it needs.
func (t *Table) add(one *Route) {
	t.Routes = append(t.Routes, one)
	t.needsHost = t.needsHost || len(one.hosts) > 0
	t.needsMethod = t.needsMethod || len(one.methods) > 0
	t.needsURI = t.needsURI || one.path != nil
	for _, charge := range one.Charges {
		t.needsMethod = t.needsMethod || slices.Contains(charge.Parts, "method")
	}
}

// A reader reads routes. What is wrong is in its yamltree.Reader.
type reader struct {
	*yamltree.Reader

	trusted []string
}

// each returns the texts of a list that are valid. A list that is there is not empty.
func (r *reader) each(all []yamltree.At[string], valid func(string) error) (texts []string) {
	for _, of := range all {
		err := errors.New("it is empty")
		if of.Value != "" {
			err = valid(of.Value)
		}
		if err != nil {
			r.At(of.Place, "%v", err)
			continue
		}
		texts = append(texts, of.Value)
	}
	return texts
}

// route reads a route.
func (r *reader) route(at yamltree.Place, text *routeText) *Route {
	to := &Route{NoFields: text.Fields != nil && !*text.Fields}
	to.hosts = r.each(text.Host, validHost)
	for i, host := range to.hosts {
		to.hosts[i] = strings.ToLower(host)
	}
	to.methods = r.each(text.Method, validMethod)
	if text.Path != nil {
		var err error
		to.path, err = parsePattern(text.Path.Value)
		if err != nil {
			r.At(text.Path.Place, "%v", err)
			to.faulty = true
		}
	}
	// With a host or a method that is at fault it would seem to match all of them.
	to.faulty = to.faulty || len(to.hosts) < len(text.Host) || len(to.methods) < len(text.Method)
	isEmpty := func(list yamltree.Texts) bool { return list != nil && len(list) == 0 }
	if isEmpty(text.Host) || isEmpty(text.Method) {
		r.At(at, "a list of it is empty")
	}
	switch {
	case text.Charge == nil:
		r.At(at, "it has no charge: write [] for a route without limits")
	case len(text.Charge) > maxCharges:
		r.At(at, "there are %d charges, more than %d", len(text.Charge), maxCharges)
	}
	for _, of := range text.Charge {
		to.Charges = append(to.Charges, r.charge(of.Place, &of.Value, to.path))
	}
	return to
}

// reached adds a fault if no request gets to a route, because those before it take them all.
func (r *reader) reached(one *Route, before []*Route) {
	taking := takers(one, before)
	if one.faulty || len(taking) == 0 {
		return
	}
	names := make([]string, len(taking))
	for i, index := range taking {
		names[i] = fmt.Sprintf("%s, in line %d,", before[index].Name, before[index].Place.Line)
	}
	verb := "is"
	those := "that one"
	if len(names) > 1 {
		verb = "are together"
		those = "them"
	}
	r.At(one.Place, "it never applies: %s %s for all its requests, and the first route that matches counts: "+
		"write it before %s", strings.Join(names, " and "), verb, those)
}

// last notes that requests may have no route.
func (r *reader) last(all []*Route, at yamltree.Place) {
	isFaulty := func(of *Route) bool { return of.faulty } // and then nobody knows what it is for
	if len(takers(new(Route), all)) > 0 || slices.ContainsFunc(all, isFaulty) {
		return
	}
	r.Warn(at, "no route is for everything: requests that match none are charged nothing. "+
		"Write a last one without host, method and path: {charge: [...]}")
}

// takers returns the indexes of the routes that together take all requests of another, or none if one is left over.
func takers(of *Route, all []*Route) (indexes []int) {
	for request, path := range of.samples(all) {
		takes := func(first *Route) bool { return !first.faulty && first.matches(request, path, equal) }
		i := slices.IndexFunc(all, takes)
		if i < 0 {
			return nil
		}
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	return slices.Compact(indexes)
}

// unnamedText is a host, a method and a part of a path that no route has.
const unnamedText = "*"

// samples yields requests of a route: one of each kind that others can tell apart. Where a route names nothing, what no
// route names stands for all there is: who does not match that leaves something over.
func (t *Route) samples(others []*Route) iter.Seq2[*http.Request, []string] {
	hosts := orUnnamed(t.hosts)
	methods := orUnnamed(t.methods)
	if slices.Contains(methods, http.MethodGet) { // whose routes are for HEAD, too
		methods = append(slices.Clip(methods), http.MethodHead)
	}
	paths := t.path.samples(others)
	return func(yield func(*http.Request, []string) bool) {
		for _, host := range hosts {
			for _, method := range methods {
				for _, path := range paths {
					if !yield(&http.Request{Host: host, Method: method}, path) {
						return
					}
				}
			}
		}
	}
}

// orUnnamed returns a list, or for an empty one, which stands for any, the text that no route has.
func orUnnamed(list []string) []string {
	if len(list) == 0 {
		return []string{unnamedText}
	}
	return list
}

// charge reads a charge of a route with that path.
func (r *reader) charge(at yamltree.Place, text *chargeText, path *pattern) *Charge {
	of := &Charge{Limit: text.Limit.Value, Place: text.Limit.Place, Units: 1, ObserveOnly: text.ObserveOnly}
	var parts []keyfuncs.Func
	of.Parts = r.each(text.Key, func(text string) error {
		part, err := keyOf(text, r.trusted, path)
		if err == nil {
			parts = append(parts, part)
		}
		return err
	})
	switch {
	case len(parts) == 1: // it is charged as it is
		of.Key = parts[0]
	case len(parts) > 1:
		of.Key = keyfuncs.All(parts...)
	}
	if of.Limit == "" || len(text.Key) == 0 {
		r.At(at, "it has no limit or no key, or an empty one")
	}
	if text.Units != nil {
		of.Units = text.Units.Value
	}
	if of.Units < 0 || of.Units > MaxUnits {
		r.At(text.Units.Place, "it must be a whole number from 0 to 2^53-1")
	}
	if text.Plan.Line > 0 {
		name, ok := strings.CutPrefix(text.Plan.Value, "header:")
		if !ok || !token.MatchString(name) {
			r.At(text.Plan.Place, "it has not the form header:NAME, of the header that has the plan of a request")
		}
		of.Plan = keyfuncs.Header(name)
	}
	return of
}

// hostName has the names in a Host field that a client can send, as far as they are ASCII.
var hostName = regexp.MustCompile(`^` + hostLabel + `(\.` + hostLabel + `)*$`)

const hostLabel = `[0-9A-Za-z_]([0-9A-Za-z_-]*[0-9A-Za-z_])?`

// validHost says what is wrong with a host, and what to write.
func validHost(text string) error {
	// What people write, so that they are told the name in it.
	scheme, rest, isURL := strings.Cut(text, "://")
	name := strings.Trim(text, ".")
	before, port, _ := strings.Cut(text, ":")
	_, notPort := strconv.ParseUint(port, 10, 16)
	inner, errInner := netip.ParseAddr(strings.Trim(text, "[]"))
	switch {
	case hostName.MatchString(text):
		return nil
	case isURL && scheme != "":
		rest, _, _ = strings.Cut(rest, "/")
		return errors.New("it is a URL: write the name of its host, " + strconv.Quote(rest))
	case strings.Contains(text, "*"):
		return errors.New("a * stands for no names: write a list of hosts, or leave host out for all")
	case errInner == nil && inner.Is6() && inner.String() == text:
		return nil
	case errInner == nil:
		return errors.New("a host is compared as clients write it: write " + inner.String())
	case notPort == nil && hostName.MatchString(before):
		return errors.New("hosts are compared without a port: write " + before)
	case hostName.MatchString(name):
		return errors.New("hosts are compared without a dot at an end: write " + name + ", and each host below it")
	case strings.Contains(text, "/"):
		return errors.New("it has a path, which is a field of its own: write path")
	case strings.ContainsAny(text, ", |"):
		return errors.New("it is not the name of a host: write several as a list, [a.example.com, b.example.com]")
	case strings.ContainsFunc(text, func(char rune) bool { return char > 127 }):
		return errors.New("clients send the name in ASCII: write it so, as xn--bcher-kva.example for bücher.example")
	}
	return errors.New("it is not the name of a host, such as api.example.com")
}

// methods are those that are registered, and those that programs for caches and devices have.
var methods = strings.Fields(`ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL LINK LOCK
	MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST PRI PROPFIND
	PROPPATCH PUT QUERY REBIND REPORT SEARCH TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF
	VERSION-CONTROL BAN M-SEARCH NOTIFY PURGE REFRESH SOURCE SUBSCRIBE UNSUBSCRIBE`)

// validMethod says what is wrong with a method, and what to write.
func validMethod(text string) error {
	upper := strings.ToUpper(text)
	switch {
	case slices.Contains(methods, text):
		return nil
	case slices.Contains(methods, upper):
		return errors.New("methods are in capital letters: write " + upper)
	case text == "*" || upper == "ANY" || upper == "ALL":
		return errors.New("leave method out for all")
	case strings.ContainsAny(text, ",| "):
		return errors.New("it is not a method: write several as a list, [GET, POST]")
	}
	return errors.New("it is not a method, such as " + http.MethodPost)
}
