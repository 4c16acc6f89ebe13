package headgated

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/backend"
	limitsdoc "github.com/headgate/headgate/internal/document"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
	"github.com/headgate/headgate/internal/plans"
	"github.com/headgate/headgate/keyfuncs"
)

// The names of a document.
const (
	wordLimits  = "limits"
	wordTrusted = "trusted"
	wordRoutes  = "routes"
	wordHost    = "host"
	wordMethod  = "method"
	wordPath    = "path"
	wordCharge  = "charge"
	wordLimit   = "limit"
	wordKey     = "key"
	wordUnits   = "units"
	wordPlan    = "plan"
	wordRLS     = "rls"
)

// maxUnits is the largest number of units, 2^53-1.
const maxUnits = 1<<53 - 1

// A document is what a text says.
type document struct {
	limits  *limitsdoc.Document
	tables  map[string]*plans.Table[*backend.Policies] // by the names of the limits
	trusted func(*http.Request) bool
	routes  []*route
	domains map[string]*domain
	named   []*rule // with limits of the document
}

// decode is the decoder of whole documents. A document need not end in "...": a file that was cut off is known by what
// its routes miss, and is not read while it grows.
func decode(text []byte) (limits.Node, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		text = slices.Concat(bytes.TrimRight(text, " \t\r\n"), []byte("\n...\n")) // a copy: the text is its source's
	}
	return yamldoc.Decode(text)
}

// has reports whether a map has a key.
func has(n *limits.Node, key string) bool {
	return slices.ContainsFunc(n.Keys, func(k limits.Node) bool { return k.Text == key })
}

// parse returns the document of a text. The error is limits.Faults, with all that is wrong. If the limits
// are elsewhere, the document has none, and what routes and descriptors name is not looked for. The limiters of
// descriptors are of the store.
func parse(text []byte, elsewhere bool, store *backend.Store, defaults rlsDefaults) (*document, error) {
	root, err := decode(text)
	var fault *limits.Fault
	if errors.As(err, &fault) {
		return nil, limits.Faults{fault}
	} else if err != nil {
		return nil, err
	}
	r, known := &reader{}, !elsewhere
	fields := r.fields(&root, "", wordLimits, wordTrusted, wordRoutes, wordRLS)
	d := &document{limits: new(limitsdoc.Document)}
	switch v := fields[wordLimits]; {
	case elsewhere && v != nil:
		r.fault(v, wordLimits, "the limits are those in Redis: remove these")
	case elsewhere:
	case v == nil && root.Kind == limits.Map && fields[wordRLS] == nil:
		r.fault(&root, "", "the document has no %s", wordLimits)
	case v != nil:
		of, err := limitsdoc.ParseLimits(text, wordTrusted, wordRoutes, wordRLS)
		if err == nil {
			err = of.Prepare(store.Rates.Prepare)
		}
		var faults limitsdoc.Faults
		if errors.As(err, &faults) {
			r.faults, known = append(r.faults, faultsOf(faults)...), false
		} else if d.enact(of); len(of.Limits) == 0 && fields[wordRLS] == nil {
			r.fault(&root, "", "the document has no %s", wordLimits)
		}
	}
	networks := r.trusted(fields[wordTrusted])
	d.trusted = trustedPeer(networks)
	r.items(fields[wordRoutes], wordRoutes, func(n *limits.Node, path string) {
		d.routes = append(d.routes, r.route(n, path, networks))
	})
	r.faults = append(r.faults, d.readRules(fields[wordRLS], store, defaults)...)
	if known {
		r.faults = append(r.faults, d.missing()...)
	}
	if len(r.faults) > 0 {
		slices.SortStableFunc(r.faults, func(a, b *limits.Fault) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
		return nil, r.faults
	}
	return d, nil
}

// enact makes limits those of the document.
func (d *document) enact(of *limitsdoc.Document) {
	d.limits = of
	d.tables, _ = of.Tables()
}

// faultsOf returns faults of limits, or warnings.
func faultsOf(all limitsdoc.Faults) (faults limits.Faults) {
	for _, f := range all {
		faults = append(faults, &limits.Fault{Line: f.Line, Column: f.Column, Err: errors.New(f.Text)})
	}
	return faults
}

// missing returns a fault for each limit that a route or a descriptor names and that is not there.
func (d *document) missing() (faults limits.Faults) {
	for _, t := range d.routes {
		for _, c := range t.charges {
			if c.limit != "" && d.tables[c.limit] == nil {
				faults = append(faults, missingAt(c.place))
			}
		}
	}
	for _, r := range d.named {
		if d.tables[r.limit] == nil {
			faults = append(faults, missingAt(r.place))
		}
	}
	return faults
}

func missingAt(at limits.Fault) *limits.Fault {
	at.Err = errors.New("there is no such limit among the " + wordLimits)
	return &at
}

// A reader collects what is wrong.
type reader struct{ faults limits.Faults }

func (r *reader) fault(n *limits.Node, path, format string, args ...any) {
	r.faults = append(r.faults, &limits.Fault{Line: n.Line, Column: n.Column, Path: path, Err: fmt.Errorf(format, args...)})
}

// fields returns the values of a map whose keys must be among those known.
func (r *reader) fields(n *limits.Node, path string, known ...string) map[string]*limits.Node {
	fields, faults := n.Fields(path, known...)
	r.faults = append(r.faults, faults...)
	return fields
}

// list returns the values of a list, or the one value that is none. A nil node has none.
func list(n *limits.Node) []*limits.Node {
	switch {
	case n == nil:
		return nil
	case n.Kind != limits.List:
		return []*limits.Node{n}
	}
	all := make([]*limits.Node, len(n.Values))
	for i := range n.Values {
		all[i] = &n.Values[i]
	}
	return all
}

// items calls f for each value of what must be a list. A nil node is an empty one.
func (r *reader) items(n *limits.Node, path string, f func(n *limits.Node, path string)) {
	if n != nil && n.Kind != limits.List {
		r.fault(n, path, "it is %v, not a list", n.Kind)
		return
	}
	for i, v := range list(n) {
		f(v, path+"["+strconv.Itoa(i)+"]")
	}
}

// text returns a string that must not be empty.
func (r *reader) text(n *limits.Node, path string) (text string, ok bool) {
	switch {
	case n.Kind != limits.String:
		r.fault(n, path, "it is %v, not a string%s", n.Kind, map[bool]string{true: ": quote it"}[n.Kind < limits.String])
	case n.Text == "":
		r.fault(n, path, "it is empty")
	default:
		return n.Text, true
	}
	return "", false
}

// texts returns the valid ones of a string or a list of strings. A list must not be empty.
func (r *reader) texts(n *limits.Node, path string, valid func(string) error) (texts []string) {
	all := list(n)
	if n != nil && len(all) == 0 {
		r.fault(n, path, "the list is empty")
	}
	for _, v := range all {
		text, ok := r.text(v, path)
		if !ok {
			continue
		}
		if err := valid(text); err != nil {
			r.fault(v, path, "%w", err)
			continue
		}
		texts = append(texts, text)
	}
	return texts
}

// trusted returns the networks of the proxies, with the peers on a unix socket.
func (r *reader) trusted(n *limits.Node) []string {
	networks := []string{keyfuncs.Unix}
	r.items(n, wordTrusted, func(n *limits.Node, path string) {
		text, ok := r.text(n, path)
		if !ok {
			return
		}
		if err := keyfuncs.CheckNetworks(text); err != nil {
			r.fault(n, path, "%s", strings.TrimPrefix(err.Error(), "headgate: keyfuncs: "))
			return
		}
		networks = append(networks, text)
	})
	return networks
}

func (r *reader) route(n *limits.Node, path string, trusted []string) *route {
	to := &route{name: path, line: n.Line}
	fields := r.fields(n, path, wordHost, wordMethod, wordPath, wordCharge)
	for _, host := range r.texts(fields[wordHost], path+"."+wordHost, validHost) {
		to.hosts = append(to.hosts, strings.ToLower(host))
	}
	to.methods = r.texts(fields[wordMethod], path+"."+wordMethod, validMethod)
	if v := fields[wordPath]; v != nil {
		if text, ok := r.text(v, path+"."+wordPath); ok {
			var err error
			if to.path, err = parsePattern(text); err != nil {
				r.fault(v, path+"."+wordPath, "%w", err)
			}
		}
	}
	if fields[wordCharge] == nil && n.Kind == limits.Map {
		r.fault(n, path, "it has no %s: write [] for a route without limits", wordCharge)
	}
	r.items(fields[wordCharge], path+"."+wordCharge, func(n *limits.Node, path string) {
		to.charges = append(to.charges, r.charge(n, path, to, trusted))
	})
	if len(to.charges) > maxCharges {
		r.fault(fields[wordCharge], path+"."+wordCharge, "there are %d charges, more than %d", len(to.charges), maxCharges)
	}
	return to
}

func (r *reader) charge(n *limits.Node, path string, of *route, trusted []string) *routeCharge {
	c := &routeCharge{units: 1}
	fields := r.fields(n, path, wordLimit, wordKey, wordUnits, wordPlan)
	for _, required := range []string{wordLimit, wordKey} {
		if fields[required] == nil && n.Kind == limits.Map {
			r.fault(n, path, "it has no %s", required)
		}
	}
	if v := fields[wordLimit]; v != nil {
		if name, ok := r.text(v, path+"."+wordLimit); ok {
			c.limit, c.place = name, limits.Fault{Line: v.Line, Column: v.Column, Path: path + "." + wordLimit}
		}
	}
	if v := fields[wordKey]; v != nil {
		c.parts = r.texts(v, path+"."+wordKey, func(text string) error {
			_, err := keyOf(text, trusted, of.path)
			return err
		})
		if len(c.parts) > 0 {
			c.key = combined(c.parts, trusted, of.path)
		}
	}
	if v := fields[wordUnits]; v != nil {
		c.units = r.number(v, path+"."+wordUnits, 0)
	}
	if v := fields[wordPlan]; v != nil {
		if text, ok := r.text(v, path+"."+wordPlan); ok {
			var err error
			if c.plan, err = headerName(text); err != nil {
				r.fault(v, path+"."+wordPlan, "%w", err)
			}
		}
	}
	return c
}

// number returns a whole number from least to 2^53-1.
func (r *reader) number(n *limits.Node, path string, least int64) int64 {
	if n.Kind != limits.Number {
		r.fault(n, path, "it is %v, not a number", n.Kind)
		return least
	}
	i, err := strconv.ParseInt(n.Text, 10, 64)
	if err != nil || strconv.FormatInt(i, 10) != n.Text || i < least || i > maxUnits {
		r.fault(n, path, "it must be a whole number from %d to 2^53-1", least)
		return least
	}
	return i
}
