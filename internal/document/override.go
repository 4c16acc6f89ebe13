package document

import (
	"cmp"
	"net/netip"
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
