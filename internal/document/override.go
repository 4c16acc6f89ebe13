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

// overrides reads the overrides of a limit. Two for one key would depend on their order.
func (r *reader) overrides(limit *Limit, list *yaml.Node) {
	lines := make(map[string]int, len(list.Content))
	for _, node := range list.Content {
		override := r.override(limit, node)
		if override == nil {
			continue
		}
		line := lines[override.id()]
		if line > 0 {
			r.Fault(node, "the %s has an override already, in line %d", override.Kind, line)
			continue
		}
		lines[override.id()] = node.Line
		limit.Overrides = append(limit.Overrides, override)
	}
}

// override reads one override, or returns nil after a fault. One that has a fault is left out of the limit, so that
// nothing which follows from the fault is told.
func (r *reader) override(limit *Limit, node *yaml.Node) *Override {
	own := "policies"
	if limit.IsSlots {
		own = "slots"
	}
	// The fields are read in one order, whatever the order in the text: faults are sorted by their places in the end.
	before := len(r.Faults)
	override := &Override{place: yamltree.PlaceOf(node)}
	fields := r.Fields(node, "an override", "key", "prefix", "network", "plan", own, "from", "until", "note")
	if node.Kind != yaml.MappingNode {
		return nil
	}
	r.whom(override, node, fields)
	r.what(override, limit, node, fields["plan"], fields[own], own)
	r.when(override, node, fields["from"], fields["until"])
	override.Note = r.Text(fields["note"], "a note")
	if len(r.Faults) > before {
		return nil
	}
	return override
}

// what reads what an override gives: a plan of the limit, or policies of its own.
func (r *reader) what(override *Override, limit *Limit, node, plan, policies *yaml.Node, own string) {
	switch {
	case plan != nil && policies != nil:
		r.Fault(policies, "it has a plan and %s: write all policies of the key, or a plan", own)
	case plan != nil:
		override.PlanName = r.Text(plan, "a plan")
		override.Plan = limit.Plans[override.PlanName]
		if override.PlanName != "" && override.Plan == nil {
			r.Fault(plan, "there is no such plan")
		}
	case policies != nil:
		override.Plan = r.plan(limit, policies)
		r.warnOfMissing(limit, override.Plan, policies)
	default:
		r.Fault(node, "it does not say what applies: plan or %s", own)
	}
}

// when reads from when an override applies, and until when. An override that is over is no fault: the document would
// become invalid while nobody touches it.
func (r *reader) when(override *Override, node, from, until *yaml.Node) {
	override.From = r.instant(from)
	override.Until = r.instant(until)
	switch {
	case override.Until.IsZero():
	case !override.From.IsZero() && !override.From.Before(override.Until):
		r.Fault(until, "it is not after from")
	case !override.Until.After(time.Now()):
		over := override.Until.Format(time.RFC3339)
		r.Warn(yamltree.PlaceOf(node), "the override is over since %s: remove it", over)
	}
}

// whom reads the key, the prefix or the network of an override.
func (r *reader) whom(override *Override, node *yaml.Node, fields map[string]*yaml.Node) {
	for _, kind := range []string{"key", "prefix", "network"} {
		value := fields[kind]
		if value == nil {
			continue
		}
		if override.Kind != "" {
			r.Fault(value, "it has a %s and a %s: write an override for each", override.Kind, kind)
			continue
		}
		override.Kind = kind
		override.Value = value.Value
		switch {
		case !r.Is(value, "a "+kind, "a string"):
		case override.Value == "":
			r.Fault(value, "it is empty")
		case kind == "network":
			override.network = r.network(value)
		default:
			r.key(kind, value)
		}
	}
	if override.Kind == "" {
		r.Fault(node, "it does not say for whom it is: key, prefix or network")
	}
}

// warnOfMissing warns of policies of the default plan that an override's own do not have: they do not apply to its
// keys.
func (r *reader) warnOfMissing(limit *Limit, own *Plan, node *yaml.Node) {
	standard := limit.Plans[limit.Default]
	if standard == nil || isConstant(own.Policies) || isConstant(standard.Policies) {
		return
	}
	// The only policy of a plan need not have a name, and then there is nothing to compare.
	if standard.Policies[0].Name == "" {
		return
	}
	for _, policy := range standard.Policies {
		sameName := func(other backend.Policy) bool { return policy.Name == other.Name }
		if !slices.ContainsFunc(own.Policies, sameName) {
			r.Warn(yamltree.PlaceOf(node), "it has no policy %s, which the default plan has: "+
				"an override has all policies of its keys", policy.Name)
		}
	}
}

// key checks a key, or a prefix. One that is no network as package keyfuncs makes them would never apply. A network is
// a fault, since its addresses are meant. What only looks wrong is a warning: programs may have keys of any form.
func (r *reader) key(kind string, node *yaml.Node) {
	text := node.Value
	place := yamltree.PlaceOf(node)
	address, bits, isAddress := plans.Address(text)
	isNetwork := strings.Contains(text, "/")
	// A network is at fault for what it is, whatever its form looks like.
	hint := neverApplies(kind, text)
	switch {
	case hint != "" && (!isNetwork || !isAddress):
		r.Warn(place, "%s", hint)
	case !isAddress:
	case kind == "prefix" && isNetwork:
		r.Fault(node, "it is a network, and no prefix of its addresses: write network: instead of prefix:")
	case kind == "prefix":
	case isNetwork && (address.Is4() || bits != 64):
		r.Fault(node, "it is a network, and no address in it is this key: write network: instead of key:")
	case isNetwork && netip.PrefixFrom(address, bits).Masked().String() != text:
		r.Fault(node, "keys of IPv6 are networks of 64 bits in their shortest form, without other bits: this is none")
	case !isNetwork && address.Is4In6():
		r.Fault(node, "it is an IPv4 address: write it as one")
	case !isNetwork && address.Is6():
		r.Warn(place, "keys of IPv6 are networks of 64 bits: this one never applies, "+
			"but where the program counts by addresses")
	}
}

// network reads a network.
func (r *reader) network(node *yaml.Node) netip.Prefix {
	text := node.Value
	// Each of these is a network to some other program, but of other keys than the author means.
	network, err := netip.ParsePrefix(text)
	_, errAddress := netip.ParseAddr(text)
	switch {
	case errAddress == nil && !strings.Contains(text, "/"):
		r.Fault(node, "it is an address: write its length, such as /32, or key: instead of network:")
	case err != nil:
		none := "it is not a network, such as 203.0.113.0/28 or 2001:db8::/48"
		r.Fault(node, "%s", cmp.Or(neverApplies("network", text), none))
	case network.Addr().Is4In6():
		r.Fault(node, "it is a network of IPv4: write it as one")
	case network != network.Masked():
		r.Fault(node, "the address has bits beyond the length: "+
			"write the first address of the network, or another length")
	case network.Addr().Is6() && network.Bits() > 64:
		r.Warn(yamltree.PlaceOf(node), "keys of IPv6 are networks of 64 bits: a narrower one never applies, "+
			"but where the program counts by longer ones")
	}
	return network
}

// instant reads a time. RFC 3339 has an offset, so it means the same on each server. Years before 1970 are mistakes of
// typing.
func (r *reader) instant(node *yaml.Node) time.Time {
	if node == nil || node.Kind == 0 {
		return time.Time{}
	}
	instant, err := time.Parse(time.RFC3339, node.Value)
	instant = instant.UTC()
	inRange := instant.Year() >= 1970 && instant.Year() <= 9999
	if node.Kind != yaml.ScalarNode || err != nil || !inRange {
		r.Fault(node, "it is not a time since 1970: write one as 2026-12-01T00:00:00Z")
		return time.Time{}
	}
	return instant
}

// A form is one in which people write addresses, and in which no key of package keyfuncs is, with what to write
// instead.
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

// The forms, each with an example. The first that matches gives the hint, so what is more special comes first.
var (
	forms = []form{
		// a soft hyphen, a Mongolian vowel separator, a zero-width space, a word joiner, a byte order mark
		newForm("[\u00ad\u180e\u200b\u2060\ufeff]",
			"it has a character that is invisible, such as a blank without width: write it anew"),
		// "anna "
		newForm(`^[\s\pZ]|[\s\pZ]$`,
			"it begins or ends with a blank, as no key of a header does: remove it"),
		// <203.0.113.7>
		newForm("^[\"'`<]ADDRESS[\"'`>]$",
			"it has marks around an address: write the address alone"),
		// 203.0.113.*, 2001:db8:*
		newForm(`^(\d{1,3}\.){1,3}([*xX]\.){0,2}[*xX]$|^[0-9a-fA-F:]*:\*$`,
			"no key has wildcards: write network: with the length, such as 203.0.113.0/24"),
		// 203.0.113.1-203.0.113.9, 203.0.113.1-9
		newForm(`^IPV4 *(-|–|to|\.\.+) *[\d.]*\d$|^IPV6 *[-–] *IPV6$`,
			"no key is a range of addresses: write network: for each network in it"),
		// 203.0.113.0/255.255.255.0
		newForm(`^ADDRESS/ADDRESS$`,
			"no key has a mask: write network: with the length, such as 203.0.113.0/24"),
		// 203.0.113.7/
		newForm(`^ADDRESS/$`,
			"it is an address with a slash: write the address alone"),
		// 203.0.113.7, 203.0.113.8
		newForm(`^ADDRESS(/\d+)?([,;|\s]+ADDRESS(/\d+)?)+$`,
			"no key is a list of addresses: write an override for each"),
		// 203.0.113.7:443, [2001:db8::1]:443
		newForm(`^(IPV4|\[IPV6\]):\d+$`,
			"keys of addresses have no port: write the address alone"),
		// [2001:db8::1]
		newForm(`^\[IPV6\]$`,
			"keys of addresses have no brackets: write the network of 64 bits, such as 2001:db8:1:2::/64"),
		// fe80::1%eth0
		newForm(`^IPV6%`,
			"keys of addresses have no zone: write the network of 64 bits, such as 2001:db8:1:2::/64"),
		// 203.0.113.7.
		newForm(`^IPV4\.$`,
			"it is an address with a dot at its end: write the address alone"),
		// 203.0.113.007: some programs read such a number as an octal one
		newForm(`^(0\d+(\.\d+){3}|\d+\.0\d+(\.\d+){2}|(\d+\.){2}0\d+\.\d+|(\d+\.){3}0\d+)(/\d+)?$`,
			"keys of addresses have no leading zeros: write the address without them"),
		// 203.0.113.256: it is no address, or it would have been one
		newForm(`^IPV4(/\d+)?$`,
			"it looks like an address or a network, but a number in it is too large"),
	}
	// ip:203.0.113.0/28
	tagged = newForm(`^[^:.]*[^:.0-9a-fA-F][^:.]*:(ADDRESS/\d+)$`,
		"no key with a tag is such a network: write prefix: with the tag and the beginning of the addresses, "+
			"or let the program count addresses without a tag")
	// 203.0.113
	beginning = newForm(`^\d{1,3}(\.\d{1,3}){1,2}\.?$`,
		"it is the beginning of an address, and no key: "+
			"write prefix: with a dot at the end, or network: with its length")
	// 203.0.11, which begins more networks; 203.0.30 does not, as no number is above 255
	moreOfIPv4 = newForm(`^\d{1,3}(\.\d{1,3})?\.([1-9]|1\d|2[0-5])$`,
		"it is the prefix of more networks, as 203.0.11 is of 203.0.110 to 203.0.119: "+
			"end it with a dot, or write network:")
	// 2001:db8:1, of the networks that are in use (RFC 4291, 2.4)
	moreOfIPv6 = newForm(`^([23][0-9a-f]{3}|f[de][0-9a-f]{2})(:[0-9a-f]{1,4}){1,6}$`,
		"it is the prefix of more networks, as 2001:db8:1 is of 2001:db8:10: write network:")
	formsOf = map[string][]form{
		"key": {beginning, tagged}, "network": {beginning, tagged}, "prefix": {moreOfIPv4, moreOfIPv6, tagged},
	}
	dated = regexp.MustCompile(`^\d+:\d+$`) // a date or numbers, rather than an address
)

// neverApplies returns what to write instead of a key or a prefix that no key of an address is, or that is one of other
// keys, too, as far as its form tells. It is "" if there is nothing to say, and never repeats the text.
func neverApplies(kind, text string) string {
	// A whole address is right as a key, and as a network is what package netip says of it.
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
	// The last group of a tag is the network behind it: one of 64 bits is right there, as in ip:2001:db8::/64. In the
	// other forms it is no network.
	for _, form := range formsOf[kind] {
		found := form.pattern.FindStringSubmatch(text)
		if found == nil || dated.MatchString(text) {
			continue
		}
		if !isNetworkOf64Bits(found[len(found)-1]) {
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
