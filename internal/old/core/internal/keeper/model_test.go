package keeper

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// A model is the scripts in Go, and the server that runs them. The differential test
// holds that they agree.
type model struct {
	keys   map[string]map[string]Field // by key and incarnation
	scores map[string]int64            // as of #clock and #last too; nil: there is no such set
	now    int64                       // its time, for state, in microseconds
	broken string                      // what it does wrong, so that the simulation has something to find
}

func newModel() *model { return &model{keys: make(map[string]map[string]Field)} }

// clone is what a replica has.
func (m *model) clone() *model {
	c := &model{make(map[string]map[string]Field), maps.Clone(m.scores), m.now, m.broken}
	for key, fields := range m.keys {
		c.keys[key] = maps.Clone(fields)
	}
	return c
}

// state is slots.lua.
func (m *model) state(key string, op *Op) (r Reply) {
	fields := m.keys[key]
	found, exists := fields[op.ID]
	last := int64(-1)
	if exists {
		r.Found, last = found, found.Seq
		r.Found.Mark = Mark{}
	}
	n := 0
	var waiting []Field
	mark := found.Mark
	if op.Want != 0 || op.ListAll {
		for id, f := range fields {
			if id != op.ID && !slices.Contains(op.Drop, id) {
				r.Others += f.Count
				n++
				r.Fields = append(r.Fields, Field{ID: id, Count: f.Count})
				if f.Mark != (Mark{}) {
					waiting = append(waiting, f)
				}
			}
		}
	}
	switch {
	case op.Seq < last && m.broken != "no sequence":
		r.Outcome = Stale
	case op.Seq == last:
		r.Outcome, r.Granted = Same, found.Count-op.Held
	default:
		if m.broken != "drops nothing" {
			for _, id := range op.Drop {
				delete(fields, id)
			}
		}
		if m.broken == "stingy" {
			r.Others++
		}
		r.Granted = max(min(max(op.Want, 0), op.Limit-r.Others-op.Held), min(op.Want, 0))
		switch {
		case (op.Waits == WaitsShort || op.Waits == WaitsOn) && op.Want > 0 && n > 0:
			mark = m.fair(op, &r, mark, waiting)
		case op.Waits != WaitsStill:
			mark = Mark{}
		}
		if count := op.Held + r.Granted; count > 0 || op.Keep || mark != (Mark{}) {
			if fields == nil {
				fields = make(map[string]Field)
				m.keys[key] = fields
			}
			fields[op.ID] = Field{op.ID, count, op.Seq, mark}
		} else {
			delete(fields, op.ID)
		}
		if len(fields) == 0 {
			delete(m.keys, key)
		}
	}
	r.Marked = mark != (Mark{})
	if !op.ListAll && r.Granted >= op.Want && n > 8 {
		r.Fields = nil
	}
	return r
}

// fair is what slots.lua grants to one that waits while others do, too. It returns its mark.
func (m *model) fair(op *Op, r *Reply, own Mark, waiting []Field) (mark Mark) {
	const lasts = 500_000
	fresh := func(f Mark) bool { return max(m.now-f.Seen, f.Seen-m.now) < lasts }
	mark = Mark{m.now, m.now, op.Limit}
	if own != (Mark{}) && fresh(own) {
		mark.Since = own.Since
	}
	all := op.Limit - r.Others
	var rivals []Field
	for _, f := range waiting {
		if fresh(f.Mark) && (f.Mark.Limit >= op.Limit || r.Others+op.Held < f.Mark.Limit) || m.broken == "waits for the dead" {
			rivals = append(rivals, f)
			all += f.Count
		}
	}
	all = max(all, 0)
	if n := int64(len(rivals)) + 1; n > 1 {
		share, extra := all/n, all%n
		mine := max(share-op.Held, 0)
		free, before := op.Limit-r.Others-op.Held-mine, int64(0)
		for _, f := range rivals {
			if free -= max(share-f.Count, 0); f.Count <= share && f.Mark.Since < mark.Since {
				before++
			}
		}
		if op.Held <= share && free > before {
			mine++
		}
		if m.broken != "is unfair" {
			r.Granted = min(r.Granted, mine)
		}
		total := op.Held + r.Granted
		switch {
		case r.Granted >= op.Want:
		case total < share:
			r.Due = 1
		case total == share && extra > 0:
			r.Due = int(max(before-extra+1, 0)) + 1
		}
		if total > share {
			mark.Since = m.now
		}
	}
	if r.Granted == op.Want && op.Waits != WaitsOn {
		return Mark{}
	}
	return mark
}

// beat is beat.lua.
func (m *model) beat(now int64, b *Beat) {
	if m.scores == nil {
		m.scores = make(map[string]int64)
	}
	clock, ok := m.scores["#clock"]
	if !ok {
		clock = 1
	}
	last, ok := m.scores["#last"]
	if !ok {
		last = now
	}
	step := b.Step.Microseconds()
	if m.broken == "no fleet clock" {
		step = 1 << 60
	}
	if gap := max(now-last, 0); gap <= 2*step {
		clock += min(gap, step)
	}
	m.scores["#clock"], m.scores["#last"] = clock, now
	bury := func(id string) { m.scores[id] = -clock }
	for _, id := range b.Bury {
		bury(id)
	}
	for id, score := range m.scores {
		if id[0] != '#' && score >= 0 && score < clock {
			bury(id)
		}
	}
	live := clock + b.TTL.Microseconds()
	b.State = None
	if b.ID != "" {
		switch score, ok := m.scores[b.ID]; {
		case ok && (score >= 0 || m.broken == "revives"):
			b.State = Live
			m.scores[b.ID] = live
		case ok:
			b.State = Lost
		default:
			b.State = Absent
		}
	}
	if b.State != Live && b.New != "" {
		if m.scores[b.New] < 0 {
			b.State = Spent
		} else {
			for id, score := range m.scores {
				if b.Replaces != "" && strings.HasPrefix(id, b.Replaces) && id != b.New && score >= 0 {
					bury(id)
				}
			}
			m.scores[b.New] = live
		}
	}
	for _, id := range b.Seen {
		if _, ok := m.scores[id]; !ok {
			m.scores[id] = live
		}
	}
	const day = 26 * 3600_000_000
	b.Clock, b.Dead = clock, nil
	for id, score := range m.scores {
		switch {
		case score >= 0:
		case -score < clock-day:
			delete(m.scores, id)
		case m.broken != "hides the dead":
			b.Dead = append(b.Dead, id)
		}
	}
	slices.SortFunc(b.Dead, func(x, y string) int {
		return cmp.Or(cmp.Compare(m.scores[x], m.scores[y]), cmp.Compare(x, y))
	})
}
