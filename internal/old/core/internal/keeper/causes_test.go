package keeper

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// How long what nobody holds may count in the simulation. Its network loses one message
// in fifty, and delays others.
const (
	simDeath = simTTL + simBeat + 2*refusedFor   // from a crash until others have the slots
	simLoss  = simTTL + 2*simBeat + 2*refusedFor // from a failover until what it has brought back is gone
	simGhost = 2 * simBeat                       // from the landing of an op of an incarnation that is over until that is known
	simTold  = 2 * simBeat                       // from a release until it is stated
)

// An account has what each key counted, truly or with a cause, and all refusals. The
// world's lock guards it.
type account struct {
	stays    []*stay
	refusals []refusal
}

// A stay is a time in which so many slots of a key counted.
type stay struct {
	key      string
	from, to time.Time // to is zero while it lasts
	slots    int
	owner    *process // whose crash ends it; may be nil
	why      string

	// What an incarnation that the server does not know has stated counts until some
	// process has seen it, and for simLoss after that.
	unknown string
	seq     int64
}

// A refusal is an acquire that was told that the key is full, and when it asked.
type refusal struct {
	key      string
	from, to time.Time
	limit    int
	who      string
}

// An ending is a stay whose slot is not held any more, but perhaps still stated: until the
// server has executed an op that was made after that.
type ending struct {
	*stay

	held bool
	seq  int64     // of the last op made before
	at   time.Time // when that was
}

func (a *account) begin(key, why string, from time.Time, slots int) *stay {
	s := &stay{key: key, from: from, slots: slots, why: why}
	a.stays = append(a.stays, s)
	return s
}

// found notes that the server has these fields of a key: what an unknown incarnation had
// stated is gone if its field is another.
func (a *account) found(key string, fields map[string]Field, now time.Time) {
	for _, s := range a.stays {
		if s.key == key && s.unknown != "" && s.to.IsZero() && fields[s.unknown].Seq != s.seq {
			s.to = now.Add(simGhost)
		}
	}
}

// told notes that a process was told of fields of a key, and reports them.
func (a *account) told(key string, fields []Field, now time.Time) {
	for _, s := range a.stays {
		if s.key == key && s.unknown != "" && s.to.IsZero() && slices.ContainsFunc(fields, func(f Field) bool { return f.ID == s.unknown }) {
			s.to = now.Add(simLoss)
		}
	}
}

// faults returns the refusals that have no cause: at no instant did the key count as many
// as the limit.
func (a *account) faults(start time.Time) (faults []string) {
	for _, r := range a.refusals {
		if most := a.most(r.key, r.from, r.to); most < r.limit {
			faults = append(faults, fmt.Sprintf("%s: refused, %d of %d slots of key %s counted, from %v to %v:%s",
				r.who, most, r.limit, r.key, r.from.Sub(start), r.to.Sub(start), a.near(&r, start)))
		}
	}
	return faults
}

// most returns the most slots that a key counted at once at some instant of a time.
func (a *account) most(key string, from, to time.Time) (most int) {
	instants := []time.Time{from}
	for _, s := range a.stays {
		if s.key == key && s.from.After(from) && !s.from.After(to) {
			instants = append(instants, s.from)
		}
	}
	for _, t := range instants {
		n := 0
		for _, s := range a.stays {
			if s.key == key && !s.from.After(t) && (s.to.IsZero() || !s.to.Before(t)) {
				n += s.slots
			}
		}
		most = max(most, n)
	}
	return most
}

// near tells the stays around a refusal.
func (a *account) near(r *refusal, start time.Time) string {
	var b strings.Builder
	for _, s := range a.stays {
		if s.key == r.key && !s.from.After(r.to) && (s.to.IsZero() || r.from.Sub(s.to) < 2*simTTL) {
			fmt.Fprintf(&b, "\n   %d from %v to %v: %s", s.slots, s.from.Sub(start), s.to.Sub(start), s.why)
		}
	}
	return b.String()
}
