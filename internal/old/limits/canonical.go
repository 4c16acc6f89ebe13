package limits

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/old/core"
)

// MarshalJSON returns the document in its canonical form, which is the same for equal documents.
// [Parse] makes an equal document of it. It has the keys of overrides. The error is always nil.
func (d *Document) MarshalJSON() ([]byte, error) {
	var w writer
	w.object(func() {
		w.sections(wordLimits, d.limits)
		w.sections(wordSlots, d.slots)
	})
	return w.Bytes(), nil
}

// A writer writes JSON without white space.
type writer struct {
	bytes.Buffer
}

func (w *writer) object(members func()) {
	w.WriteByte('{')
	members()
	w.WriteByte('}')
}

// name writes the name of the next member.
func (w *writer) name(s string) {
	if b := w.Bytes(); b[len(b)-1] != '{' {
		w.WriteByte(',')
	}
	w.text(s)
	w.WriteByte(':')
}

// text writes a string, which is UTF-8.
func (w *writer) text(s string) {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)
	w.Truncate(w.Len() - 1) // the newline
}

// field writes a member that is a string, unless it is empty.
func (w *writer) field(name, s string) {
	if s != "" {
		w.name(name)
		w.text(s)
	}
}

func (w *writer) sections(word string, all map[string]*section) {
	if len(all) == 0 {
		return
	}
	w.name(word)
	w.object(func() {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			w.name(name)
			w.object(func() { w.section(all[name]) })
		}
	})
}

func (w *writer) section(s *section) {
	w.field(wordDefault, s.standard)
	w.name(wordPlans)
	w.object(func() {
		for _, name := range slices.Sorted(maps.Keys(s.plans)) {
			w.name(name)
			if s.slots {
				w.number(s.plans[name].slots)
			} else {
				w.policies(s.plans[name].policies)
			}
		}
	})
	if len(s.overrides) > 0 {
		w.name(wordOverrides)
		w.WriteByte('[')
		for i, o := range inOrder(s.overrides) {
			if i > 0 {
				w.WriteByte(',')
			}
			w.object(func() { w.override(s, o) })
		}
		w.WriteByte(']')
	}
}

// inOrder returns overrides in the order of whom they are for.
func inOrder(overrides []override) []*override {
	all := make([]*override, len(overrides))
	for i := range overrides {
		all[i] = &overrides[i]
	}
	slices.SortFunc(all, func(a, b *override) int {
		if a.kind != b.kind {
			return strings.Compare(a.kind, b.kind)
		}
		return strings.Compare(a.value, b.value)
	})
	return all
}

func (w *writer) override(s *section, o *override) {
	w.field(o.kind, o.value)
	w.field(wordPlan, o.plan)
	if s.slots && o.slots >= 0 {
		w.name(wordSlots)
		w.number(o.slots)
	}
	if len(o.policies) > 0 {
		w.name(wordPolicies)
		w.policies(o.policies)
	}
	w.field(wordFrom, instantText(o.from))
	w.field(wordUntil, instantText(o.until))
	w.field(wordNote, o.note)
}

func instantText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// number writes a number of slots.
func (w *writer) number(n int64) {
	if n == core.NoLimit {
		w.text(planUnlimited)
		return
	}
	w.WriteString(strconv.FormatInt(n, 10))
}

func (w *writer) policies(all []policy) {
	if all[0].Name() == "" {
		w.text(all[0].String())
		return
	}
	w.object(func() {
		for _, p := range all {
			w.name(p.Name())
			w.text(p.Named("").String())
		}
	})
}
