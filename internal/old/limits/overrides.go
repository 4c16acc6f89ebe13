package limits

import (
	"net/netip"
	"strconv"
	"time"
)

// overrides reads the overrides of a section.
func (r *reader) overrides(s *section, n *Node, path string) {
	if !r.is(n, path, List) {
		return
	}
	before := len(r.faults) + r.more
	s.overrides = make([]override, 0, len(n.Values))
	seen := make(map[[2]string]int, len(n.Values)) // the line, by kind and value
	ids := make(map[string]string)                 // each once, for memory
	words := make(map[string]policy)
	if !s.slots && before == 0 {
		for _, name := range s.planNames() {
			r.sameWords(s, s.plans[name].policies, words)
		}
	}
	for i := range n.Values {
		at := path + "[" + strconv.Itoa(i) + "]"
		o, ok := r.override(s, &n.Values[i], at)
		if !ok {
			continue
		}
		id := [2]string{o.kind, o.value}
		if line, twice := seen[id]; twice {
			r.add(o.place.fault("the %s has an override already, in line %d", o.kind, line))
			continue
		}
		seen[id] = o.place.line
		if !o.until.IsZero() && !o.until.After(r.now) {
			r.notes = append(r.notes, o.place.fault("the override is over since %s: remove it", o.until.Format(time.RFC3339)))
		}
		if isNetwork(o.value) {
			r.notes = append(r.notes, o.place.fault("the %s is a network, and applies to no address in it, unless a keyfuncs.Prefix makes this network their key: "+
				"write an override for each address, and for IPv6 for each network of 64 bits, as 2001:db8:1:2::/64", o.kind))
		}
		if len(o.policies) > 0 {
			id := fingerprint(s, o.policies)
			if _, known := ids[id]; !known {
				ids[id] = id
				r.sameWords(s, o.policies, words)
			}
			o.id = ids[id]
		}
		s.overrides = append(s.overrides, o)
	}
}

// isNetwork reports whether a key is a network that is no client's key by default, as the 64 bits of an IPv6 address are.
func isNetwork(key string) bool {
	network, err := netip.ParsePrefix(key)
	return err == nil && (network.Bits() != 64 || network.Masked().String() != key)
}

// override reads one override.
func (r *reader) override(s *section, n *Node, path string) (o override, ok bool) {
	before := len(r.faults) + r.more
	o = override{place: placeOf(n, path), slots: -1}
	numbers := wordPolicies
	if s.slots {
		numbers = wordSlots
	}
	fields := r.fields(n, path, forKey, forPrefix, wordPlan, numbers, wordFrom, wordUntil, wordNote)
	if n.Kind != Map {
		return o, false
	}
	for _, kind := range []string{forKey, forPrefix} {
		v := fields[kind]
		if v == nil {
			continue
		}
		if o.kind != "" {
			r.fault(v, path, "it has a %s and a %s: write an override for each", o.kind, kind)
		}
		o.kind, o.value = kind, v.Text
		switch name := path + "." + kind; {
		case !r.is(v, name, String):
		case v.Text == "":
			r.fault(v, name, "it is empty")
		}
	}
	if o.kind == "" {
		r.fault(n, path, "it says not for whom it is: %s or %s", forKey, forPrefix)
	}
	if v := fields[wordPlan]; v != nil {
		name := path + "." + wordPlan
		if o.plan = v.Text; r.is(v, name, String) && !s.has(v.Text) {
			r.fault(v, name, "there is no such plan")
		}
	}
	if v := fields[numbers]; v != nil {
		if name := path + "." + numbers; s.slots {
			o.slots = r.number(v, name)
		} else {
			o.policies = r.policies(v, name)
		}
	} else if fields[wordPlan] == nil {
		r.fault(n, path, "it says not what applies: %s or %s", wordPlan, numbers)
	}
	o.from, o.until = r.instant(fields[wordFrom], path+"."+wordFrom), r.instant(fields[wordUntil], path+"."+wordUntil)
	if !o.from.IsZero() && !o.until.IsZero() && !o.from.Before(o.until) {
		r.fault(fields[wordUntil], path+"."+wordUntil, "it is not after %s", wordFrom)
	}
	if v := fields[wordNote]; v != nil {
		r.is(v, path+"."+wordNote, String)
		o.note = v.Text
	}
	return o, len(r.faults)+r.more == before
}

// instant reads a time.
func (r *reader) instant(n *Node, path string) time.Time {
	if n == nil || !r.is(n, path, String) {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, n.Text)
	t = t.UTC() // in which it may be of another year than it says, for which there is no text
	if err != nil || t.IsZero() || t.Year() < 1 || t.Year() > 9999 {
		r.fault(n, path, "it is not a time: write one as 2026-12-01T00:00:00Z")
	}
	return t
}
