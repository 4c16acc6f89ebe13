package document

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/plans"
	"github.com/headgate/headgate/internal/yamltree"
)

// overrides reads the overrides of a limit.
func (r *reader) overrides(l *Limit, n *yaml.Node) {
	lines := make(map[[2]string]int, len(n.Content))
	for _, v := range n.Content {
		o := r.override(l, v)
		if o == nil {
			continue
		}
		id := [2]string{o.Kind, o.Value}
		if o.Kind == "network" {
			id[1] = o.network.String()
		}
		if line := lines[id]; line > 0 {
			r.Fault(v, "the %s has an override already, in line %d", o.Kind, line)
			continue
		}
		lines[id] = v.Line
		l.Overrides = append(l.Overrides, o)
	}
}

// override reads one override, or returns nil after a fault.
func (r *reader) override(l *Limit, n *yaml.Node) *Override {
	own, before := "policies", len(r.Faults)
	if l.Slots {
		own = "slots"
	}
	o := &Override{place: yamltree.PlaceOf(n)}
	fields := r.Fields(n, "an override", "key", "prefix", "network", "plan", own, "from", "until", "note")
	if n.Kind != yaml.MappingNode {
		return nil
	}
	r.whom(o, n, fields)
	plan, policies := fields["plan"], fields[own]
	switch {
	case plan != nil && policies != nil:
		r.Fault(policies, "it has a plan and %s: write all policies of the key, or a plan", own)
	case plan != nil:
		if o.Plan = r.Text(plan, "a plan"); o.Plan != "" {
			if o.Is = l.Plans[o.Plan]; o.Is == nil {
				r.Fault(plan, "there is no such plan")
			}
		}
	case policies != nil:
		o.Is = r.plan(l, policies)
		r.missing(l, o.Is, policies)
	default:
		r.Fault(n, "it does not say what applies: plan or %s", own)
	}
	o.From, o.Until = r.instant(fields["from"]), r.instant(fields["until"])
	switch {
	case !o.From.IsZero() && !o.Until.IsZero() && !o.From.Before(o.Until):
		r.Fault(fields["until"], "it is not after from")
	case !o.Until.IsZero() && !o.Until.After(time.Now()):
		r.Warn(yamltree.PlaceOf(n), "the override is over since %s: remove it", o.Until.Format(time.RFC3339))
	}
	o.Note = r.Text(fields["note"], "a note")
	if len(r.Faults) > before {
		return nil
	}
	return o
}

// whom reads the key, the prefix or the network of an override.
func (r *reader) whom(o *Override, n *yaml.Node, fields map[string]*yaml.Node) {
	for _, kind := range []string{"key", "prefix", "network"} {
		v := fields[kind]
		if v == nil {
			continue
		}
		if o.Kind != "" {
			r.Fault(v, "it has a %s and a %s: write an override for each", o.Kind, kind)
			continue
		}
		o.Kind, o.Value = kind, v.Value
		switch {
		case !r.Is(v, "a "+kind, "a string"):
		case o.Value == "":
			r.Fault(v, "it is empty")
		case kind == "network":
			r.network(o, v)
		default:
			r.key(o, v)
		}
	}
	if o.Kind == "" {
		r.Fault(n, "it does not say for whom it is: key, prefix or network")
	}
}

// missing warns of policies of the default plan that an override's own do not have: they do not apply to its keys.
func (r *reader) missing(l *Limit, own *Plan, n *yaml.Node) {
	standard := l.Plans[l.Default]
	if standard == nil || constant(own.Policies) || constant(standard.Policies) || standard.Policies[0].Name == "" {
		return
	}
	for _, p := range standard.Policies {
		if !slices.ContainsFunc(own.Policies, func(q backend.Policy) bool { return p.Name == q.Name }) {
			r.Warn(yamltree.PlaceOf(n), "it has no policy %s, which the default plan has: an override has all policies of its keys", p.Name)
		}
	}
}

// key checks a key, or a prefix. One that is no network as package keyfuncs makes them would never apply.
func (r *reader) key(o *Override, n *yaml.Node) {
	address, bits, ok := plans.Address(o.Value)
	hint := neverApplies(o.Kind, o.Value)
	switch network := strings.Contains(o.Value, "/"); {
	case hint != "" && (!network || !ok):
		r.Warn(yamltree.PlaceOf(n), "%s", hint)
	case !ok:
	case o.Kind == "prefix" && network:
		r.Fault(n, "it is a network, and no prefix of its addresses: write network: instead of prefix:")
	case o.Kind == "prefix":
	case network && (address.Is4() || bits != 64):
		r.Fault(n, "it is a network, and no address in it is this key: write network: instead of key:")
	case network && netip.PrefixFrom(address, bits).Masked().String() != o.Value:
		r.Fault(n, "keys of IPv6 are networks of 64 bits in their shortest form, without other bits: this is none")
	case !network && address.Is4In6():
		r.Fault(n, "it is an IPv4 address: write it as one")
	case !network && address.Is6():
		r.Warn(yamltree.PlaceOf(n), "keys of IPv6 are networks of 64 bits: this one never applies, but where the program counts by addresses")
	}
}

// network reads a network.
func (r *reader) network(o *Override, n *yaml.Node) {
	p, err := netip.ParsePrefix(o.Value)
	_, none := netip.ParseAddr(o.Value)
	switch {
	case none == nil && !strings.Contains(o.Value, "/"):
		r.Fault(n, "it is an address: write its length, such as /32, or key: instead of network:")
	case err != nil:
		r.Fault(n, "%s", cmp.Or(neverApplies("network", o.Value), "it is not a network, such as 203.0.113.0/28 or 2001:db8::/48"))
	case p.Addr().Is4In6():
		r.Fault(n, "it is a network of IPv4: write it as one")
	case p != p.Masked():
		r.Fault(n, "the address has bits beyond the length: write the first address of the network, or another length")
	case p.Addr().Is6() && p.Bits() > 64:
		r.Warn(yamltree.PlaceOf(n), "keys of IPv6 are networks of 64 bits: a narrower one never applies, but where the program counts by longer ones")
	}
	o.network = p
}

// instant reads a time.
func (r *reader) instant(n *yaml.Node) time.Time {
	if n == nil || n.Kind == 0 {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, n.Value)
	t = t.UTC()
	if n.Kind != yaml.ScalarNode || err != nil || t.Year() < 1970 || t.Year() > 9999 {
		r.Fault(n, "it is not a time since 1970: write one as 2026-12-01T00:00:00Z")
		return time.Time{}
	}
	return t
}

// A form is one in which people write addresses, and in which no key of package keyfuncs is, with what to write instead.
type form struct {
	pattern *regexp.Regexp
	hint    string
}

// newForm returns a form whose pattern has ADDRESS, IPV4 and IPV6 for what looks like one.
func newForm(pattern, hint string) form {
	const (
		ipv4 = `\d{1,3}(?:\.\d{1,3}){3}`
		ipv6 = `[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*`
	)
	names := strings.NewReplacer("ADDRESS", "(?:"+ipv4+"|"+ipv6+")", "IPV4", ipv4, "IPV6", ipv6)
	return form{regexp.MustCompile(names.Replace(pattern)), hint}
}

var (
	forms = []form{
		newForm("[\u00ad\u180e\u200b\u2060\ufeff]", "it has a character that is invisible, such as a blank without width: write it anew"),
		newForm(`^[\s\pZ]|[\s\pZ]$`, "it begins or ends with a blank, as no key of a header does: remove it"),
		newForm("^[\"'`<]ADDRESS[\"'`>]$", "it has marks around an address: write the address alone"),
		newForm(`^(\d{1,3}\.){1,3}([*xX]\.){0,2}[*xX]$|^[0-9a-fA-F:]*:\*$`,
			"no key has wildcards: write network: with the length, such as 203.0.113.0/24"),
		newForm(`^IPV4 *(-|–|to|\.\.+) *[\d.]*\d$|^IPV6 *[-–] *IPV6$`, "no key is a range of addresses: write network: for each network in it"),
		newForm(`^ADDRESS/ADDRESS$`, "no key has a mask: write network: with the length, such as 203.0.113.0/24"),
		newForm(`^ADDRESS/$`, "it is an address with a slash: write the address alone"),
		newForm(`^ADDRESS(/\d+)?([,;|\s]+ADDRESS(/\d+)?)+$`, "no key is a list of addresses: write an override for each"),
		newForm(`^(IPV4|\[IPV6\]):\d+$`, "keys of addresses have no port: write the address alone"),
		newForm(`^\[IPV6\]$`, "keys of addresses have no brackets: write the network of 64 bits, such as 2001:db8:1:2::/64"),
		newForm(`^IPV6%`, "keys of addresses have no zone: write the network of 64 bits, such as 2001:db8:1:2::/64"),
		newForm(`^IPV4\.$`, "it is an address with a dot at its end: write the address alone"),
		newForm(`^(0\d+(\.\d+){3}|\d+\.0\d+(\.\d+){2}|(\d+\.){2}0\d+\.\d+|(\d+\.){3}0\d+)(/\d+)?$`,
			"keys of addresses have no leading zeros: write the address without them"),
		newForm(`^IPV4(/\d+)?$`, "it looks like an address or a network, but a number in it is too large"),
	}
	tagged = newForm(`^[^:.]*[^:.0-9a-fA-F][^:.]*:(ADDRESS/\d+)$`, "no key with a tag is such a network: write prefix: with the tag and "+
		"the beginning of the addresses, or let the program count addresses without a tag")
	beginning = newForm(`^\d{1,3}(\.\d{1,3}){1,2}\.?$`, "it is the beginning of an address, and no key: write prefix: with a dot at the end, "+
		"or network: with its length")
	moreOfIPv4 = newForm(`^\d{1,3}(\.\d{1,3})?\.([1-9]|1\d|2[0-5])$`, "it is the prefix of more networks, as 203.0.11 is of 203.0.110 to 203.0.119: "+
		"end it with a dot, or write network:")
	moreOfIPv6 = newForm(`^([23][0-9a-f]{3}|f[de][0-9a-f]{2})(:[0-9a-f]{1,4}){1,6}$`, "it is the prefix of more networks, as 2001:db8:1 is "+
		"of 2001:db8:10: write network:")
	formsOf = map[string][]form{
		"key": {beginning, tagged}, "network": {beginning, tagged}, "prefix": {moreOfIPv4, moreOfIPv6, tagged},
	}
	dated = regexp.MustCompile(`^\d+:\d+$`) // a date or numbers, rather than an address
)

// neverApplies returns what to write instead of a key or a prefix that no key of an address is, or that is one of other keys,
// too, as far as its form tells. It is "" if there is nothing to say, and never repeats the text.
func neverApplies(kind, text string) string {
	_, _, isAddress := plans.Address(text)
	switch {
	case isAddress && kind == "prefix" && strings.Contains(text, "."):
		return "it is a whole address, and the prefix of others, too, as 203.0.113.1 is of 203.0.113.10: write key:"
	case isAddress:
		return ""
	}
	for _, form := range forms {
		if form.pattern.MatchString(text) {
			return form.hint
		}
	}
	for _, form := range formsOf[kind] {
		found := form.pattern.FindStringSubmatch(text)
		if found != nil && !dated.MatchString(text) && !isNetworkOf64Bits(found[len(found)-1]) {
			return form.hint
		}
	}
	return ""
}

// isNetworkOf64Bits reports whether a text is one as package keyfuncs makes them.
func isNetworkOf64Bits(text string) bool {
	prefix, err := netip.ParsePrefix(text)
	return err == nil && prefix.Addr().Is6() && prefix.Bits() == 64 && prefix.Masked().String() == text
}
