package limits_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/limits"
)

// everything is a document with all that there is.
const everything = `{
  "$schema": "limits.schema.json",
  "limits": {
    "api": {
      "default": "free",
      "plans": {
        "free": {"day": "fixed-window 1000/day", "minute": "sliding-log 60/minute"},
        "gold": {"minute": "sliding-log 600/minute", "day": "fixed-window 50000/day"},
        "staff": "unlimited"
      },
      "overrides": [
        {"key": "user-42", "plan": "gold", "from": "2026-01-01T00:00:00Z", "until": "2099-12-01T01:00:00+01:00", "note": "ticket \"815\" \u2028 <b>"},
        {"prefix": "acme:", "policies": {"minute": "sliding-log 6000/minute"}},
        {"prefix": "acme:eu:", "plan": "gold", "policies": {"minute": "sliding-log 7000/minute"}},
        {"key": "hidden", "plan": "blocked"}
      ]
    },
    "login": {"plans": {"all": "sliding-log 5/minute count-denied"}}
  },
  "slots": {
    "ws": {"plans": {"free": 3, "gold": 20, "staff": "unlimited", "none": "blocked"}, "default": "free",
      "overrides": [{"key": "user-42", "slots": 50}, {"prefix": "acme:", "plan": "gold"}]}
  }
}`

// A document with twenty faults has twenty errors, each at its place.
func TestTwentyFaults(t *testing.T) {
	text := `{
  "limit": {},
  "limits": {
    "api": {
      "default": "silver",
      "plans": {
        "free": {"minute": "sliding-log 60/mintue", "day": "fixed-window"},
        "free": "unlimited",
        "gold": {"minute": "sliding-log 0/minute"},
        "blocked": "blocked",
        "a b": "blocked",
        "big": {"minute": "sliding-log 60"},
        "none": {},
        "number": 60,
        "list": ["sliding-log 60/minute"]
      },
      "overrides": [
        {"key": 42, "plan": "free"},
        {"key": "a"},
        {"plan": "free"},
        {"key": "b", "prefix": "c", "plan": "free"},
        {"key": "d", "plan": "silver"},
        {"prefix": "", "plan": "free"},
        {"key": "e", "plan": "free", "until": "tomorrow"},
        {"key": "f", "plan": "free", "from": "2027-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}
      ]
    }
  },
  "slots": {"ws": {"plans": {"free": -1}}}
}`
	_, err := limits.Parse([]byte(text), nil)
	var faults limits.Faults
	if !errors.As(err, &faults) {
		t.Fatal(err)
	}
	want := []string{
		`line 2, column 3: unknown field: one of limits, slots, $schema`,
		`line 5, column 18: limits.api.default: there is no such plan`,
		`line 7, column 41: limits.api.plans.free.minute: "sliding-log 60/mintue": "mintue" is not a period: a number and us, ms, s, m, h or d, such as 30s, or one of second, minute, hour and day`,
		`line 7, column 61: limits.api.plans.free.day: "fixed-window": fixed-window needs a rate, such as 60/minute`,
		`line 8, column 9: limits.api.plans: the name is there twice, here and in line 7`,
		`line 9, column 29: limits.api.plans.gold.minute: "sliding-log 0/minute": a rate of 0 events: to refuse everything, use Blocked`,
		`line 10, column 9: limits.api.plans.blocked: every limit has a plan blocked: give this one another name`,
		`line 11, column 9: limits.api.plans[4]: the name of a plan has 1 to 64 letters, digits, - and _`,
		`line 12, column 40: limits.api.plans.big.minute: "sliding-log 60": "60" is not a rate: write events/period, such as 60/minute or 7/30s`,
		`line 13, column 17: limits.api.plans[6]: there is no policy: write unlimited or blocked, or a policy`,
		`line 14, column 19: limits.api.plans[7]: it is a number, not a policy, such as sliding-log 60/minute, nor a map of them`,
		`line 15, column 17: limits.api.plans[8]: it is a list, not a policy, such as sliding-log 60/minute, nor a map of them`,
		`line 18, column 17: limits.api.overrides[0].key: it is a number, not a string: quote it`,
		`line 19, column 9: limits.api.overrides[1]: it says not what applies: plan or policies`,
		`line 20, column 9: limits.api.overrides[2]: it says not for whom it is: key or prefix`,
		`line 21, column 32: limits.api.overrides[3]: it has a key and a prefix: write an override for each`,
		`line 22, column 30: limits.api.overrides[4].plan: there is no such plan`,
		`line 23, column 20: limits.api.overrides[5].prefix: it is empty`,
		`line 24, column 47: limits.api.overrides[6].until: it is not a time: write one as 2026-12-01T00:00:00Z`,
		`line 25, column 79: limits.api.overrides[7].until: it is not after from`,
		`line 29, column 38: slots.ws.plans[0]: it must be a whole number from 0 to 2^53-1`,
	}
	if got := strings.Split(err.Error(), "\n"); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("there are %d faults, not %d:\n%v\nnot\n%v", len(got), len(want), err, strings.Join(want, "\n"))
	}
}

// What is wrong with a document, at its place.
func TestFaults(t *testing.T) {
	deep := strings.Repeat("[", 65) + strings.Repeat("]", 65)
	for name, c := range map[string]struct{ text, want string }{
		"empty":            {" \n\t", "the document is empty: a file that is missing or being written is not a document without limits"},
		"mark":             {"\ufeff{}", "line 1, column 1: the document begins with a byte order mark: save it without"},
		"no limits":        {"{}", "line 1, column 1: the document has no limits and no slots"},
		"empty limits":     {`{"limits": {}}`, "line 1, column 1: the document has no limits and no slots"},
		"a list":           {"[]", "line 1, column 1: the document is a list, not a map with limits or slots"},
		"null":             {`{"limits": null}`, "line 1, column 12: limits: it is null, not a map"},
		"torn":             {"{\"limits\": {\n\"api\": {\"plans\"", "line 2, column 16: the document ends before it is whole"},
		"torn string":      {`{"limits": {"ap`, "line 1, column 16: the document ends before it is whole"},
		"two":              {`{"slots": {"ws": {"plans": {"a": 1}}}} {}`, `line 1, column 40: there is '{' after the end of the document`},
		"deep":             {deep, "line 1, column 65: it is nested deeper than 64 levels"},
		"trailing comma":   {"{\"limits\": {},\n}", `line 2, column 1: a key in quotes is missing before '}'`},
		"comment":          {"{ // no\n}", `line 1, column 3: a key in quotes is missing before '/'`},
		"not UTF-8":        {"{\"\xff\": 1}", "line 1, column 5: a string is not UTF-8"},
		"half a pair":      {`{"\ud800": 1}`, `line 1, column 9: a string has a \u that is not followed by the four digits of a character, or of half a pair`},
		"characters":       {`{"limits": {"äöü": {"plans": {"a": "ünlimited"}}}}`, `line 1, column 13: limits."äöü": the name has the byte 0xc3: only printable ASCII is allowed`},
		"word":             {free(`"unlimitted"`), `line 1, column 40: limits.api.plans[0]: it does not begin with an algorithm: one of token-bucket, `},
		"escaped word":     {free(`"token-bucket \u0031x/second burst 1"`), `line 1, column 39: limits.api.plans.free: "token-bucket 1x/second burst 1": "1x" is not a whole number`},
		"unlimited beside": {free(`{"a": "unlimited", "b": "sliding-log 1/second"}`), `line 1, column 45: limits.api.plans.free.a: Unlimited and Blocked must be the only policy`},
		"nine policies": {free(`{"a":"min-interval 1s","b":"min-interval 1s","c":"min-interval 1s","d":"min-interval 1s","e":"min-interval 1s","f":"min-interval 1s","g":"min-interval 1s","h":"min-interval 1s","i":"min-interval 1s"}`),
			`line 1, column 39: limits.api.plans.free: a limiter has 1 to 8 policies, not 9`},
		"no plans":          {`{"limits": {"api": {}}}`, `line 1, column 13: limits[0]: it has no plans`},
		"empty plans":       {`{"limits": {"api": {"plans": {}}}}`, `limits.api.plans: there is no plan`},
		"default":           {`{"limits": {"api": {"plans": {"a": "unlimited", "b": "blocked"}}}}`, `limits.api: it needs a default: the plan`},
		"long name":         {`{"limits": {"` + strings.Repeat("n", 65) + `": {"plans": {"a": "unlimited"}}}}`, `the name has 65 characters, more than 64`},
		"field of slots":    {`{"slots": {"ws": {"plans": {"a": 1}, "policies": 1}}}`, `slots.ws: unknown field: one of default, plans, overrides`},
		"half a slot":       {`{"slots": {"ws": {"plans": {"a": 1.5}}}}`, `slots.ws.plans[0]: it must be a whole number from 0 to 2^53-1`},
		"exponent":          {`{"slots": {"ws": {"plans": {"a": 1e3}}}}`, `slots.ws.plans[0]: it must be a whole number from 0 to 2^53-1`},
		"too many slots":    {`{"slots": {"ws": {"plans": {"a": 9007199254740992}}}}`, `it must be a whole number from 0 to 2^53-1`},
		"slots as a string": {`{"slots": {"ws": {"plans": {"a": "3"}}}}`, `slots.ws.plans[0]: it is a string, not a number of slots, unlimited or blocked`},
		"two algorithms": {`{"limits": {"api": {"default": "a", "plans": {
			"a": {"m": "sliding-log 1/minute"},
			"b": {"m": "sliding-log 2/minute", "d": "fixed-window 2/day"},
			"c": {"m": "sliding-log 3/minute", "d": "sliding-log 2/day"}}}}}`,
			`line 4, column 44: limits.api.plans.c.d: existing usage would be lost, as it counts otherwise than the fixed-window in line 3: keep the algorithm, or give it another name`},
		"strangers": {`{"limits": {"api": {"default": "a", "plans": {
			"a": {"m": "sliding-log 1/minute", "d": "fixed-window 2/day"},
			"b": {"x": "sliding-log 2/minute", "y": "fixed-window 2/day"}}}}}`,
			`line 3, column 9: limits.api.plans.b: none of the policies is named "m" or "d", so existing usage would be lost`},
		"override of another algorithm": {`{"limits": {"api": {"plans": {"a": {"m": "sliding-log 1/minute"}},
			"overrides": [{"key": "k", "policies": {"m": "min-interval 1s"}}]}}}`,
			`line 2, column 49: limits.api.overrides[0].policies.m: existing usage would be lost`},
		"override with too many": {`{"limits": {"api": {"plans": {"p": {"a":"min-interval 1s","b":"min-interval 1s","c":"min-interval 1s","d":"min-interval 1s","e":"min-interval 1s","f":"min-interval 1s","g":"min-interval 1s","h":"min-interval 1s"}},
			"overrides": [{"key": "k", "policies": {"i": "min-interval 1s"}}]}}}`,
			`line 2, column 18: limits.api.overrides[0]: a limiter has 1 to 8 policies, not 9`},
		"twice": {`{"limits": {"api": {"plans": {"a": "unlimited"}, "overrides": [
			{"key": "secret-key", "plan": "a"},
			{"key": "secret-key", "plan": "blocked"}]}}}`,
			`line 3, column 4: limits.api.overrides[1]: the key has an override already, in line 2`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := limits.Parse([]byte(c.text), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, not %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret-key") {
				t.Error("the key is in the error")
			}
			var faults limits.Faults
			if !errors.As(err, &faults) {
				t.Errorf("%T is not Faults", err)
			}
		})
	}
}

// Documents have bounds, which are checked before they take time or memory.
func TestBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	if _, err := limits.Parse(make([]byte, 100<<20), nil); err == nil || !strings.Contains(err.Error(), "the document has 104857600 bytes, more than 16777216") {
		t.Error(err)
	}
	many := "[" + strings.Repeat("0,", limits.MaxNodes) + "0]"
	if _, err := limits.Parse([]byte(many), nil); err == nil || !strings.Contains(err.Error(), "there are more than 2097152 values") {
		t.Error(err)
	}
	if _, err := limits.Parse([]byte(strings.Repeat("[", limits.MaxBytes)), nil); err == nil || !strings.Contains(err.Error(), "nested deeper") {
		t.Error(err)
	}
	var text bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&text, ",\"%d\": 1", i)
	}
	_, err := limits.Parse([]byte(`{"limits": {"api": {"plans": {"a": "unlimited"}`+text.String()+"}}}"), nil)
	var faults limits.Faults
	if !errors.As(err, &faults) || len(faults) != 101 || faults[100].Error() != "there are 900 more faults" {
		t.Errorf("%d faults, the last of which is %v", len(faults), faults[len(faults)-1])
	}
}

// The canonical form is the same for documents that say the same, and says the same.
func TestCanonicalForm(t *testing.T) {
	d := parse(t, everything)
	text, err := d.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	again := parse(t, string(text))
	if again.Version() != d.Version() || len(d.Version()) != 12 {
		t.Errorf("version %s is %s when it is read again", d.Version(), again.Version())
	}
	if diff := limits.Compare(d, again); len(diff.Changes) > 0 {
		t.Error(diff)
	}
	if twice, _ := again.MarshalJSON(); !bytes.Equal(text, twice) {
		t.Errorf("%s\nis not\n%s", twice, text)
	}
	const want = `{"limits":{"api":{"default":"free","plans":{"free":{"minute":"sliding-log 60/minute","day":"fixed-window 1000/day"},` +
		`"gold":{"minute":"sliding-log 600/minute","day":"fixed-window 50000/day"},"staff":"unlimited"},"overrides":[` +
		`{"key":"hidden","plan":"blocked"},` +
		`{"key":"user-42","plan":"gold","from":"2026-01-01T00:00:00Z","until":"2099-12-01T00:00:00Z","note":"ticket \"815\" \u2028 <b>"},` +
		`{"prefix":"acme:","policies":{"minute":"sliding-log 6000/minute"}},{"prefix":"acme:eu:","plan":"gold","policies":{"minute":"sliding-log 7000/minute"}}]},` +
		`"login":{"default":"all","plans":{"all":"sliding-log 5/minute count-denied"}}},` +
		`"slots":{"ws":{"default":"free","plans":{"free":3,"gold":20,"none":0,"staff":"unlimited"},"overrides":[{"key":"user-42","slots":50},{"prefix":"acme:","plan":"gold"}]}}}`
	if string(text) != want {
		t.Errorf("%s\nis not\n%s", text, want)
	}
	other := strings.Replace(everything, "60/minute\"", "60/60s\"", 1)
	if parse(t, other).Version() != d.Version() {
		t.Error("another spelling has another version")
	}
	for _, change := range [][2]string{{"60/minute", "61/minute"}, {"815", "816"}, {"2099", "2098"}, {`"free": 3`, `"free": 4`}, {`"acme:"`, `"acm:"`}} {
		if parse(t, strings.Replace(everything, change[0], change[1], 1)).Version() == d.Version() {
			t.Errorf("%s in the place of %s has the same version", change[1], change[0])
		}
	}
}

// What is a time, its canonical form has too.
func TestTimesAtTheEnds(t *testing.T) {
	text := func(until string) string {
		return `{"limits": {"api": {"plans": {"a": "unlimited"}, "overrides": [{"key": "k", "plan": "blocked", "until": "` + until + `"}]}}}`
	}
	for _, until := range []string{"9999-12-31T23:59:59-05:00", "0000-01-01T00:00:00+05:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "0000-12-31T23:59:59Z"} {
		if _, err := limits.Parse([]byte(text(until)), nil); err == nil || !strings.Contains(err.Error(), "overrides[0].until: it is not a time") {
			t.Errorf("%s: %v", until, err)
		}
	}
	for _, until := range []string{"9999-12-31T23:59:59Z", "0001-01-01T00:00:01Z", "0000-12-31T23:59:59-00:01"} {
		canonical, _ := parse(t, text(until)).MarshalJSON()
		parse(t, string(canonical))
	}
}

// An override that is over is no fault, as documents do not become invalid by themselves.
func TestOverridesThatAreOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		text := `{"limits": {"api": {"plans": {"a": "unlimited"}, "overrides": [
			{"key": "k", "plan": "blocked", "until": "` + time.Now().Add(time.Hour).Format(time.RFC3339) + `"}]}}}`
		if notes := parse(t, text).Notes(); len(notes) != 0 {
			t.Error(notes)
		}
		time.Sleep(time.Hour)
		const want = "line 2, column 4: limits.api.overrides[0]: the override is over since 2000-01-01T01:00:00Z: remove it"
		if notes := parse(t, text).Notes(); len(notes) != 1 || notes[0].Error() != want {
			t.Error(notes)
		}
	})
}

// A network as a key is no fault yet, but a note. The 64 bits of an IPv6 address are a key, in their shortest form.
func TestOverridesOfNetworks(t *testing.T) {
	const note = " is a network, and applies to no address in it, unless a keyfuncs.Prefix makes this network their key: write an override for each address, and for IPv6 for each network of 64 bits, as 2001:db8:1:2::/64"
	for key, noted := range map[string]bool{
		"203.0.113.0/28": true, "203.0.113.7/32": true, "0.0.0.0/0": true, "2001:db8::/32": true, "2001:db8:1:2::/65": true,
		"2001:db8:1:2:0::/64": true, "2001:DB8::/64": true, "2001:db8::1/64": true, "::ffff:203.0.113.7/64": true,
		"2001:db8:1:2::/64": false, "::/64": false, "203.0.113.7": false, "2001:db8::1": false, "user/64": false, "ip:203.0.113.0/28": false,
	} {
		for i, section := range []string{`"limits": {"api": {"plans": {"a": "unlimited"}`, `"slots": {"ws": {"plans": {"a": 1}`} {
			for _, kind := range []string{"key", "prefix"} {
				notes := parse(t, `{`+section+`, "overrides": [`+"\n"+`{"`+kind+`": "`+key+`", "plan": "blocked"}]}}}`).Notes()
				want := ""
				if noted {
					want = "line 2, column 1: " + []string{"limits.api", "slots.ws"}[i] + ".overrides[0]: the " + kind + note
				}
				if notes.Error() != want {
					t.Errorf("%s: %v, not %s", key, notes, want)
				}
			}
		}
	}
}

// A diff says everything that changes, without keys.
func TestDiff(t *testing.T) {
	to := everything
	for _, change := range [][2]string{
		{`"default": "free",
      "plans": {
        "free"`, `"default": "gold",
      "plans": {
        "new": {"minute": "sliding-log 1/minute"}, "free"`},
		{"60/minute", "70/minute"},
		{`"staff": "unlimited"
`, `"staff": "blocked"
`},
		{`"user-42", "plan"`, `"user-43", "plan"`},
		{"7000/minute", "8000/minute"},
		{`"login"`, `"signin"`},
		{`"free": 3`, `"free": 4`},
		{`"slots": 50`, `"slots": 51`},
	} {
		if !strings.Contains(to, change[0]) {
			t.Fatalf("%s is not there", change[0])
		}
		to = strings.Replace(to, change[0], change[1], 1)
	}
	const want = `limit "api": default: free -> gold
limit "api": plan free, minute: sliding-log 60/minute -> sliding-log 70/minute
limit "api": plan new: new, minute: sliding-log 1/minute
limit "api": plan staff, api: unlimited -> blocked
limit "api": override of a key: gone, was plan gold, from 2026-01-01T00:00:00Z, until 2099-12-01T00:00:00Z, note "ticket \"815\" \u2028 <b>" (line 12)
limit "api": override of a key: new, plan gold, from 2026-01-01T00:00:00Z, until 2099-12-01T00:00:00Z, note "ticket \"815\" \u2028 <b>" (line 12)
limit "api": override of a prefix: plan gold, minute: sliding-log 7000/minute -> plan gold, minute: sliding-log 8000/minute (line 14)
limit "login": all: gone, was plans all
limit "signin": all: new, plans all
slots "ws": plan free: 3 -> 4
slots "ws": override of a key: 50 -> 51 (line 22)
`
	diff := limits.Compare(parse(t, everything), parse(t, to))
	if diff.String() != want {
		t.Errorf("%v\nis not\n%s", diff, want)
	}
	if diff.Changes[4].Key != "user-42" || diff.Changes[5].Key != "user-43" {
		t.Errorf("%+v", diff.Changes[4:6])
	}
}

// Whatever the text, parsing ends, and a document's canonical form is the document.
func FuzzParse(f *testing.F) {
	f.Add([]byte(everything))
	f.Add([]byte(document))
	f.Add([]byte(free(`"token-bucket 10/second burst 5"`)))
	f.Add([]byte(`{"slots": {"ws": {"plans": {"a": 1}, "overrides": [{"key": "\ud83d\ude00", "slots": 0}]}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := limits.Parse(text, nil)
		if err != nil {
			var faults limits.Faults
			if !errors.As(err, &faults) || len(faults) == 0 {
				t.Fatalf("%T", err)
			}
			return
		}
		canonical, _ := d.MarshalJSON()
		again, err := limits.Parse(canonical, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, canonical)
		}
		if twice, _ := again.MarshalJSON(); !bytes.Equal(canonical, twice) || d.Version() != again.Version() {
			t.Errorf("%s\nis not\n%s", twice, canonical)
		}
		if diff := limits.Compare(d, again); len(diff.Changes) > 0 {
			t.Error(diff)
		}
	})
}

// The decoder of JSON takes what encoding/json takes, except what is too deep or not UTF-8, and
// finds the same in it.
func FuzzDecodeJSON(f *testing.F) {
	for _, text := range []string{everything, "[1, -0.5e+3, null, true, false, \"\\u00e4\\n\"]", `{"a": {"b": []}}`, "01", `"\x"`, "nul"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := limits.DecodeJSON(text)
		if err != nil {
			var fault *limits.Fault
			if !errors.As(err, &fault) || fault.Line < 1 || fault.Column < 1 {
				t.Fatalf("%#v", err)
			}
			if json.Valid(text) && !strings.Contains(err.Error(), "nested deeper") && !strings.Contains(err.Error(), "UTF-8") && !strings.Contains(err.Error(), "half a pair") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		var want any
		if err := d.Decode(&want); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if got := value(&n); fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
			t.Errorf("%q: %#v, not %#v", text, got, want)
		}
	})
}

// value is a node as encoding/json has it.
func value(n *limits.Node) any {
	switch n.Kind {
	case limits.Bool:
		return n.Text == "true"
	case limits.Number:
		return json.Number(n.Text)
	case limits.String:
		return n.Text
	case limits.List:
		all := make([]any, len(n.Values))
		for i := range n.Values {
			all[i] = value(&n.Values[i])
		}
		return all
	case limits.Map:
		all := make(map[string]any, len(n.Values))
		for i := range n.Values {
			all[n.Keys[i].Text] = value(&n.Values[i])
		}
		return all
	}
	return nil
}
