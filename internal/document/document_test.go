package document

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// A document with many faults has each at its place, all at once.
func TestAllFaultsAtOnce(t *testing.T) {
	text := `{
  "limit": {},
  "limits": {
    "api": {
      "default": "silver",
      "plans": {
        "free": {"minute": "sliding-log 60/mintue", "day": "fixed-window"},
        "free": "unlimited",
        "gold": {"minute": "sliding-log 0/minute"},
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
        {"network": "203.0.113.1/28", "plan": "free"},
        {"key": "e", "plan": "free", "until": "tomorrow"},
        {"key": "f", "plan": "free", "from": "2027-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
        {"key": "203.0.113.0/28", "plan": "free"},
        {"key": "g", "plan": "free", "policies": "unlimited"}
      ]
    }
  },
  "slots": {"ws": {"plans": {"free": -1}}}
}`
	want := []string{
		`line 2, column 3: the document has no such field: one of limits, slots, $schema`,
		`line 5, column 18: there is no such plan`,
		`line 7, column 28: "sliding-log 60/mintue": "mintue" is not a period: a number and us, ms, s, m, h or d, such as 30s, or one of second, minute, hour and day`,
		`line 7, column 60: "fixed-window": fixed-window needs a rate, such as 60/minute`,
		`line 8, column 9: the name of a plan is there twice, here and in line 7`,
		`line 9, column 28: "sliding-log 0/minute": a rate of 0 events: to refuse everything, use blocked`,
		`line 10, column 9: the name of a plan has 1 to 64 letters, digits, - and _`,
		`line 11, column 27: "sliding-log 60": "60" is not a rate: write events/period, such as 60/minute or 7/30s`,
		`line 12, column 17: a limiter has 1 to 8 policies, not 0`,
		`line 13, column 19: it is a number, not a policy, such as sliding-log 60/minute, nor a map of them`,
		`line 14, column 17: it is a list, not a policy, such as sliding-log 60/minute, nor a map of them`,
		`line 17, column 17: a key is a number, not a string: quote it`,
		`line 18, column 9: it does not say what applies: plan or policies`,
		`line 19, column 9: it does not say for whom it is: key, prefix or network`,
		`line 20, column 32: it has a key and a prefix: write an override for each`,
		`line 21, column 30: there is no such plan`,
		`line 22, column 21: the address has bits beyond the length: write the first address of the network, or another length`,
		`line 23, column 47: it is not a time since 1970: write one as 2026-12-01T00:00:00Z`,
		`line 24, column 79: it is not after from`,
		`line 25, column 17: it is a network, and no address in it is this key: write network: instead of key:`,
		`line 26, column 50: it has a plan and policies: write all policies of the key, or a plan`,
		`line 30, column 38: it must be a whole number from 0 to 2^53-1`,
	}
	_, err := Parse([]byte(text))
	if err == nil {
		t.Fatal("no fault")
	}
	if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
		t.Errorf("%d faults, not %d:\n%v\nnot\n%s", len(got), len(want), err, strings.Join(want, "\n"))
	}
}

func free(policies string) string {
	return `{"limits": {"api": {"plans": {"free": ` + policies + `}}}}`
}

func override(o string) string {
	return `{"limits": {"api": {"plans": {"free": "sliding-log 1/minute"}, "overrides": [` + o + `]}}}`
}

// Each kind of fault, at its place. The texts never have the key.
func TestFaults(t *testing.T) {
	plans := "limits:\n  api:\n    plans: "
	deep := "[" + strings.Repeat("[", 64) + strings.Repeat("]", 64) + "]"
	nine := `{"a":"min-interval 1s","b":"min-interval 1s","c":"min-interval 1s","d":"min-interval 1s","e":"min-interval 1s","f":"min-interval 1s","g":"min-interval 1s","h":"min-interval 1s","i":"min-interval 1s"}`
	for name, c := range map[string]struct{ text, want string }{
		// the text as a whole
		"empty":           {" \n\t", "line 1, column 1: the document is empty: a file that is missing"},
		"only comments":   {"# nothing\n...\n", "line 1, column 1: the document is empty"},
		"only the end":    {"---\n...\n", "line 1, column 1: the document is empty"},
		"mark":            {"\ufeff{}", "line 1, column 1: the document begins with a byte order mark: save it without"},
		"not UTF-8":       {"a: 1\nb: \xff\n...", "line 2, column 4: this is not UTF-8"},
		"large":           {strings.Repeat(" ", MaxBytes) + "a", "line 1, column 1: the document has 16777217 bytes, more than 16777216"},
		"torn YAML":       {plans + "{a: unlimited}\n# ...\n", `line 4, column 6: the last line is not "..."`},
		"torn JSON":       {"{\"limits\": {\n\"api\": {\"plans\"", `line 2, column 16: the last line is not "..."`},
		"torn inside":     {`{"limits": {"api": {"plans": {"a": "unlimited"}}}`, `line 1, column 50: this is not YAML: did not find expected ',' or '}'`},
		"tab":             {"limits:\n\tapi: 1\n...\n", `line 2, column 1: this is not YAML: found character that cannot start any token`},
		"brace":           {"limits:\n  api: {\n...\n", `line 3, column 1: this is not YAML`},
		"colon":           {"a: b: c\n...", `line 1, column 5: this is not YAML: mapping values are not allowed`},
		"quote":           {"a: \"b\n...", `line 2, column 1: this is not YAML: found unexpected document indicator`},
		"indent":          {"a: 1\n  b: 2\n...", `line 2, column 4: this is not YAML`},
		"comment of JSON": {"{ // no\n}", `line 1, column 3: the document has no such field`},
		"half a pair":     {`{"\ud800": 1}`, `line 1, column 2: this has half of a character`},
		"two":             {plans + "{a: unlimited}\n---\nlimits: {}\n...", `line 4, column 1: this is a second document: write one`},
		"two of JSON":     {free(`"unlimited"`) + ` {}`, `line 1, column 55: this is not YAML: did not find expected key`},
		"no limits":       {"{}", "line 1, column 1: the document has no limits and no slots"},
		"empty limits":    {`{"limits": {}}`, "line 1, column 1: the document has no limits and no slots"},
		"a list":          {"- a\n...", "line 1, column 1: the document is a list, not a map"},
		"a list of JSON":  {"# no\n [{}]", "line 2, column 2: the document is a list, not a map"},
		"after comments":  {"# no\n---\n {\"limit\": 1,\n\"limits\": 2}\n...", "line 3, column 3: the document has no such field"},
		"next line of it": {"# no\n---\n {\"limit\": 1,\n\"limits\": 2}\n...", "line 4, column 11: limits is a number, not a map"},
		"a string":        {"secret-key\n...", "line 1, column 1: the document is a string, not a map"},
		"null":            {`{"limits": null}`, "line 1, column 12: limits is null, not a map"},
		"schema":          {`{"$schema": 1, "limits": {"a": {"plans": {"a": "unlimited"}}}}`, "line 1, column 13: the schema is a number, not a string: quote it"},
		// what plain documents do not have
		"alias":         {plans + "{a: &x unlimited, b: *x}\n    default: a\n...", `line 3, column 33: aliases are not allowed: write what it stands for`},
		"anchor":        {plans + "{a: &x unlimited, b: *x}\n    default: a\n...", `line 3, column 16: anchors are not allowed`},
		"lonely alias":  {plans + "{a: *secret-key}\n...", `line 3, column 16: this is not YAML: an alias has no anchor`},
		"merge":         {plans + "{<<: {a: unlimited}}\n...", `line 3, column 13: merge keys are not allowed`},
		"tag":           {plans + "{a: !!str unlimited}\n...", `line 3, column 16: tags are not allowed`},
		"own tag":       {plans + "!x {a: unlimited}\n...", `line 3, column 12: tags are not allowed`},
		"deep":          {"limits: " + deep + "\n...", `line 1, column 72: this is nested deeper than 64 levels`},
		"very deep":     {"a: " + strings.Repeat("[", 1<<20) + "\n...", `line 1, column 10004: this is not YAML: exceeded max depth of 10000`},
		"complex name":  {plans + "{[a]: unlimited}\n...", `line 3, column 13: the name of a plan is a list, not a string`},
		"number's name": {plans + "{429: unlimited}\n...", `line 3, column 13: the name of a plan is a number, not a string: quote it`},
		"boolean name":  {plans + "{true: unlimited}\n...", `line 3, column 13: the name of a plan is a boolean, not a string: quote it`},
		"unknown field": {"limits:\n  api:\n    plan: {a: unlimited}\n...", `line 3, column 5: a limit has no such field: one of default, plans, overrides`},
		// limits and plans
		"limit's name":   {`{"limits": {"äöü": {"plans": {"a": "unlimited"}}}}`, `line 1, column 13: the name has the byte 0xc3: only printable ASCII is allowed`},
		"long name":      {`{"limits": {"` + strings.Repeat("n", 65) + `": {"plans": {"a": "unlimited"}}}}`, `line 1, column 13: a name has at most 64 characters, not 65`},
		"twice":          {plans + "{free: unlimited, free: blocked}\n...", `line 3, column 30: the name of a plan is there twice, here and in line 3`},
		"limit twice":    {"limits:\n  api: {plans: {a: unlimited}}\n  api: {plans: {a: unlimited}}\n...", `line 3, column 3: a name is there twice, here and in line 2`},
		"field twice":    {"limits:\n  api: {plans: {a: unlimited}, plans: {a: unlimited}}\n...", `line 2, column 32: a field is there twice, here and in line 2`},
		"no plans":       {`{"limits": {"api": {}}}`, `line 1, column 13: it has no plans`},
		"empty plans":    {`{"limits": {"api": {"plans": {}}}}`, `line 1, column 13: it has no plans`},
		"plans a list":   {`{"limits": {"api": {"plans": ["a"]}}}`, `line 1, column 30: plans is a list, not a map`},
		"plan's name":    {`{"limits": {"api": {"plans": {"a b": "unlimited"}}}}`, `line 1, column 31: the name of a plan has 1 to 64 letters, digits, - and _`},
		"no default":     {`{"limits": {"api": {"plans": {"a": "unlimited", "b": "blocked"}}}}`, `line 1, column 13: it needs a default: the plan of requests that name none`},
		"default":        {`{"limits": {"api": {"plans": {"a": "unlimited"}, "default": "b"}}}`, `line 1, column 61: there is no such plan`},
		"default a list": {`{"limits": {"api": {"plans": {"a": "unlimited"}, "default": []}}}`, `line 1, column 61: default is a list, not a string`},
		"blocked":        {`{"limits": {"api": {"plans": {"a": "unlimited"}, "default": "blocked"}}}`, `there is no such plan`},
		// policies
		"empty policy":     {free(`""`), `line 1, column 39: it does not begin with an algorithm: one of token-bucket, fixed-window`},
		"word":             {free(`"secret-key 1"`), `line 1, column 39: it does not begin with an algorithm: one of token-bucket, fixed-window, sliding-window, sliding-log, min-interval, calendar, unlimited, blocked`},
		"period":           {plans + "{free: sliding-log 60/mintue}\n...", `line 3, column 19: "sliding-log 60/mintue": "mintue" is not a period`},
		"rate":             {free(`"sliding-log 60"`), `"60" is not a rate`},
		"number":           {free(`"sliding-log x/minute"`), `"x" is not a whole number of at most 2^53-1`},
		"leading zero":     {free(`"sliding-log 01/minute"`), `"01" is not a whole number`},
		"no rate":          {free(`"sliding-log"`), `sliding-log needs a rate, such as 60/minute`},
		"no period":        {free(`"min-interval"`), `min-interval needs a period, such as 100ms`},
		"zero":             {free(`"fixed-window 0/day"`), `a rate of 0 events: to refuse everything, use blocked`},
		"no time":          {free(`"fixed-window 1/0s"`), `a period must be positive`},
		"a long time":      {free(`"fixed-window 1/60000d"`), `a period must be at most 142 years`},
		"option":           {free(`"sliding-log 1/minute burst 2"`), `sliding-log has no option "burst": it has count-denied`},
		"option twice":     {free(`"token-bucket 1/minute burst 2 burst 3"`), `burst is there twice`},
		"option's number":  {free(`"token-bucket 1/minute burst"`), `burst needs a number, such as burst 100`},
		"burst":            {free(`"token-bucket 1/minute burst 0"`), `a burst must be at least 1, is 0`},
		"resolution":       {free(`"sliding-window 1/minute resolution 1001"`), `a resolution must be from 1 to 1000, is 1001`},
		"large log":        {free(`"sliding-log 1025/minute"`), `a sliding-log stores each event, at most 1024, not 1025: use sliding-window`},
		"fast bucket":      {free(`"token-bucket 2000000/second"`), `a token bucket's rate must be at most 1,000,000 a second`},
		"unlimited's":      {free(`"unlimited 5"`), `unlimited has no options: remove "5"`},
		"long text":        {free(`"sliding-log ` + strings.Repeat("1", 250) + `/minute"`), `it has 269 bytes, more than 256`},
		"a number":         {free(`60`), `line 1, column 39: it is a number, not a policy`},
		"policy a list":    {free(`{"a": []}`), `line 1, column 45: a policy is a list, not a string`},
		"policy's name":    {free(`{"": "unlimited"}`), `line 1, column 40: the name is empty`},
		"unlimited beside": {free(`{"a": "sliding-log 1/second", "b": "unlimited"}`), `line 1, column 74: unlimited and blocked must be the only policy`},
		"no policies":      {free(`{}`), `line 1, column 39: a limiter has 1 to 8 policies, not 0`},
		"nine policies":    {free(nine), `line 1, column 39: a limiter has 1 to 8 policies, not 9`},
		// slots
		"half a slot":      {`{"slots": {"ws": {"plans": {"a": 1.5}}}}`, `line 1, column 34: it must be a whole number from 0 to 2^53-1`},
		"exponent":         {`{"slots": {"ws": {"plans": {"a": 1e3}}}}`, `it must be a whole number from 0 to 2^53-1`},
		"octal":            {"slots:\n  ws: {plans: {a: 0o17}}\n...", `line 2, column 19: it must be a whole number`},
		"underscore":       {"slots:\n  ws: {plans: {a: 1_000}}\n...", `line 2, column 19: it`},
		"too many slots":   {`{"slots": {"ws": {"plans": {"a": 9007199254740992}}}}`, `it must be a whole number from 0 to 2^53-1`},
		"negative":         {`{"slots": {"ws": {"plans": {"a": -1}}}}`, `it must be a whole number from 0 to 2^53-1`},
		"slots a string":   {`{"slots": {"ws": {"plans": {"a": "3"}}}}`, `line 1, column 34: it is a string, not a number of slots, unlimited or blocked`},
		"policies of them": {`{"slots": {"ws": {"plans": {"a": 1}, "overrides": [{"key": "k", "policies": "unlimited"}]}}}`, `line 1, column 65: an override has no such field: one of key, prefix, network, plan, slots`},
		// overrides
		"no list":           {`{"limits": {"api": {"plans": {"a": "unlimited"}, "overrides": {"secret-key": "a"}}}}`, `line 1, column 63: overrides is a map, not a list`},
		"override a string": {override(`"secret-key"`), `line 1, column 78: an override is a string, not a map`},
		"unknown of it":     {override(`{"key": "k", "plam": "free"}`), `line 1, column 91: an override has no such field: one of key, prefix, network, plan, policies, from, until, note`},
		"hash":              {override(`{"hash": "00", "plan": "free"}`), `line 1, column 79: an override has no such field`},
		"for nobody":        {override(`{"plan": "free"}`), `line 1, column 78: it does not say for whom it is: key, prefix or network`},
		"key and network":   {override(`{"key": "k", "network": "192.0.2.0/24", "plan": "free"}`), `line 1, column 102: it has a key and a network: write an override for each`},
		"nothing applies":   {override(`{"key": "k"}`), `line 1, column 78: it does not say what applies: plan or policies`},
		"both apply":        {override(`{"key": "k", "plan": "free", "policies": "unlimited"}`), `line 1, column 119: it has a plan and policies`},
		"its plan":          {override(`{"key": "k", "plan": "gold"}`), `line 1, column 99: there is no such plan`},
		"key twice":         {"limits:\n  api:\n    plans: {a: unlimited}\n    overrides:\n      - {key: secret-key, plan: a}\n      - {key: secret-key, policies: blocked}\n...", `line 6, column 9: the key has an override already, in line 5`},
		"network twice":     {override(`{"network": "2001:db8::/32", "plan": "free"}, {"network": "2001:DB8:0::/32", "plan": "free"}`), `line 1, column 124: the network has an override already, in line 1`},
		"empty key":         {override(`{"key": "", "plan": "free"}`), `line 1, column 86: it is empty`},
		"empty prefix":      {override(`{"prefix": "", "plan": "free"}`), `line 1, column 89: it is empty`},
		"empty network":     {override(`{"network": "", "plan": "free"}`), `line 1, column 90: it is empty`},
		"key a number":      {"limits:\n  api:\n    plans: {a: unlimited}\n    overrides: [{key: 42, plan: a}]\n...", `line 4, column 23: a key is a number, not a string: quote it`},
		"key a time":        {"limits:\n  api:\n    plans: {a: unlimited}\n    overrides: [{key: 2026-01-01, plan: a}]\n...", `line 4, column 23: a key is a time, not a string: quote it`},
		"null key":          {"limits:\n  api:\n    plans: {a: unlimited}\n    overrides: [{key: ~, plan: a}]\n...", `line 4, column 23: a key is null, not a string: quote it`},
		"note a number":     {override(`{"key": "k", "plan": "free", "note": 815}`), `line 1, column 115: a note is a number, not a string: quote it`},
		"until":             {override(`{"key": "k", "plan": "free", "until": "tomorrow"}`), `line 1, column 116: it is not a time since 1970`},
		"until a list":      {override(`{"key": "k", "plan": "free", "until": []}`), `line 1, column 116: it is not a time since 1970`},
		"year":              {override(`{"key": "k", "plan": "free", "from": "0001-01-01T00:00:00Z"}`), `it is not a time since 1970`},
		"order":             {override(`{"key": "k", "plan": "free", "from": "2030-01-01T00:00:00Z", "until": "2030-01-01T00:00:00Z"}`), `line 1, column 148: it is not after from`},
		// networks
		"CIDR as key":        {override(`{"key": "203.0.113.0/28", "plan": "free"}`), `line 1, column 86: it is a network, and no address in it is this key: write network: instead of key:`},
		"IPv6 CIDR as key":   {override(`{"key": "2001:db8::/48", "plan": "free"}`), `write network: instead of key:`},
		"host bits of a key": {override(`{"key": "2001:db8::1/64", "plan": "free"}`), `line 1, column 86: keys of IPv6 are networks of 64 bits in their shortest form, without other bits: this is none`},
		"upper case of it":   {override(`{"key": "2001:DB8::/64", "plan": "free"}`), `keys of IPv6 are networks of 64 bits in their shortest form`},
		"IPv4 in IPv6":       {override(`{"key": "::ffff:203.0.113.7", "plan": "free"}`), `it is an IPv4 address: write it as one`},
		"CIDR as prefix":     {override(`{"prefix": "203.0.113.0/28", "plan": "free"}`), `line 1, column 89: it is a network, and no prefix of its addresses: write network: instead of prefix:`},
		"host bits":          {override(`{"network": "203.0.113.1/28", "plan": "free"}`), `line 1, column 90: the address has bits beyond the length`},
		"no length":          {override(`{"network": "203.0.113.1", "plan": "free"}`), `it is an address: write its length, such as /32`},
		"no network":         {override(`{"network": "secret-key", "plan": "free"}`), `it is not a network, such as 203.0.113.0/28 or 2001:db8::/48`},
		"long length":        {override(`{"network": "203.0.113.0/33", "plan": "free"}`), `a number in it is too large`},
		"zone":               {override(`{"network": "fe80::1%eth0/64", "plan": "free"}`), `keys of addresses have no zone`},
		"IPv4 in IPv6's":     {override(`{"network": "::ffff:203.0.113.0/124", "plan": "free"}`), `it is a network of IPv4: write it as one`},
		"network a number":   {override(`{"network": 10, "plan": "free"}`), `a network is a number, not a string: quote it`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\nnot %s", err, c.want)
			}
			var faults Faults
			if errors.As(err, &faults) {
				sound(t, faults)
			}
			if err != nil && strings.Contains(err.Error(), "secret-key") {
				t.Error("the key is in the error")
			}
		})
	}
}

// sound checks that faults have places, in order.
func sound(t *testing.T, faults Faults) {
	t.Helper()
	if len(faults) == 0 {
		t.Fatal("no faults")
	}
	for i, f := range faults {
		if f.Line < 1 || f.Column < 1 || f.Text == "" || i > 0 && f.Line < faults[i-1].Line {
			t.Fatalf("%+v", f)
		}
	}
}

func TestManyFaults(t *testing.T) {
	var text bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&text, ",\"%d\": 1", i)
	}
	_, err := Parse([]byte(`{"limits": {"api": {"plans": {"a": "unlimited"}` + text.String() + "}}}"))
	var faults Faults
	if !errors.As(err, &faults) || len(faults) != 101 || faults[100].Text != "and 900 more faults" {
		t.Errorf("%d faults, the last of which is %v", len(faults), faults[len(faults)-1])
	}
}

func TestWarnings(t *testing.T) {
	for text, want := range map[string]string{
		override(`{"network": "2001:db8::/65", "plan": "free"}`):                                                     "line 1, column 90: keys of IPv6 are networks of 64 bits: a narrower one never applies",
		override(`{"network": "2001:db8::/64", "plan": "free"}`):                                                     "",
		override(`{"key": "2001:db8::1", "plan": "free"}`):                                                           "line 1, column 86: keys of IPv6 are networks of 64 bits: this one never applies",
		override(`{"key": "2001:db8::/64", "plan": "free"}`):                                                         "",
		override(`{"key": "203.0.113.7", "plan": "free"}`):                                                           "",
		override(`{"prefix": "203.0.113.", "plan": "free"}`):                                                         "",
		override(`{"key": "a", "plan": "free", "until": "` + time.Now().Add(-time.Hour).Format(time.RFC3339) + `"}`): "line 1, column 78: the override is over since",
		`{"limits": {"api": {"plans": {"a": {"m": "sliding-log 1/minute", "d": "fixed-window 9/day"}}, "overrides": [{"key": "k", "policies": {"m": "sliding-log 2/minute"}}]}}}`: "line 1, column 134: it has no policy d, which the default plan has",
		`{"limits": {"api": {"plans": {"a": {"m": "sliding-log 1/minute", "d": "fixed-window 9/day"}}, "overrides": [{"key": "k", "policies": "unlimited"}]}}}`:                   "",
		`{"limits": {"api": {"default": "a", "plans": {"a": {"m": "sliding-log 1/minute"}, "b": {"x": "sliding-log 2/minute"}}}}}`:                                                "line 1, column 88: plan b has no policy that counts as one of the default plan does",
		`{"limits": {"api": {"default": "a", "plans": {"a": {"m": "sliding-log 1/minute"}, "b": {"x": "fixed-window 9/day", "m": "sliding-log 2/minute"}}}}}`:                     "",
		`{"limits": {"api": {"default": "a", "plans": {"a": "calendar 9/month", "b": "calendar 9/month starting 15"}}}}`:                                                          "line 1, column 77: plan b has no policy that counts as one of the default plan does",
		`{"limits": {"api": {"default": "a", "plans": {"a": "calendar 9/month", "b": "calendar 8/month in UTC"}}}}`:                                                               "",
	} {
		d, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(text, err)
		}
		if want == "" && len(d.Warnings) > 0 || want != "" && (len(d.Warnings) != 1 || !strings.HasPrefix(d.Warnings[0].String(), want)) {
			t.Errorf("%s: %v", text, d.Warnings)
		}
	}
}

// Warnings are in the order of their places, whatever the order in which they are found.
func TestWarningsAreInOrder(t *testing.T) {
	const text = `{"limits": {"api": {"default": "a", "plans": {"a": "sliding-log 1/minute", "b": "fixed-window 1/s",
"c": "fixed-window 2/s", "d": "fixed-window 2/s"}, "overrides": [{"plan": "a", "until": "2001-01-01T00:00:00Z", "key": " k"}]}}}`
	first := parse(t, text).Warnings
	inOrder := slices.IsSortedFunc(first, func(a, b Fault) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	if len(first) != 5 || !inOrder {
		t.Error(first)
	}
	for range 20 {
		if again := parse(t, text).Warnings; !slices.Equal(first, again) {
			t.Fatalf("%v\nis not\n%v", again, first)
		}
	}
}

// 1970 began with an instant, which is no missing bound.
func TestTheFirstInstant(t *testing.T) {
	for bounds, want := range map[string]int64{
		``: 0, `, "until": "1970-01-01T00:00:00Z"`: 1, `, "until": "1970-01-01T01:00:00+01:00"`: 1,
		`, "from": "1970-01-01T00:00:00Z"`: 0, `, "from": "1970-01-01T00:00:00Z", "until": "1970-01-01T00:00:01Z"`: 1,
	} {
		d := parse(t, `{"slots": {"ws": {"plans": {"a": 1}, "overrides": [{"key": "k", "slots": 0`+bounds+`}]}}}`)
		_, slots := d.Tables()
		if got := slots["ws"].Find("", "k"); got != want {
			t.Errorf("%q: %d slots, want %d", bounds, got, want)
		}
	}
}

// A text of JSON needs no last line, wherever it begins.
func TestBlanksAroundJSON(t *testing.T) {
	for _, text := range []string{"\n", " ", "\r\n\t", "\n\n  "} {
		parse(t, text+free(`"sliding-log 1/minute"`)+text)
	}
}

const everything = `# The limits of the API.
$schema: limits.schema.json
limits:
  api:
    default: free
    plans:
      free:  {minute: sliding-log 60/minute, day: fixed-window 1000/day}
      gold:  {minute: sliding-log 600/minute, day: fixed-window 50000/day}
      staff: unlimited
    overrides:
      - {key: user-42, plan: gold, from: 2026-01-01T00:00:00Z, until: 2099-12-01T00:00:00Z, note: ticket 815}
      - {prefix: "acme:", policies: {minute: sliding-log 1000/minute}}
      - {network: 203.0.113.0/28, plan: staff}
      - {network: "2001:db8::/48", plan: gold}
      - {key: "2001:db8:1::/64", policies: blocked}
  burst: {plans: {all: token-bucket 10/second burst 20}}
  month: {default: free, plans: {free: calendar 1000/month, berlin: calendar 1000/month in Europe/Berlin, more: calendar 10/month}}
slots:
  ws: {default: free, plans: {free: 3, gold: 20, staff: unlimited}, overrides: [{key: user-42, slots: 50}]}
...
`

func parse(t testing.TB, text string) *Document {
	t.Helper()
	d, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A diff says all that changes, without keys, and what starts fresh.
func TestDiff(t *testing.T) {
	to := everything
	for _, c := range [][2]string{
		{"default: free\n    plans", "default: gold\n    plans"},
		{"60/minute, day: fixed-window 1000/day", "70/minute, day: fixed-window 1000/12h"},
		{"staff: unlimited\n", "staff: blocked\n"},
		{"key: user-42, plan", "key: user-43, plan"},
		{"1000/minute}}\n", "1000/hour}}\n"},
		{"10/second burst 20", "5/second burst 20"},
		{"free: calendar 1000/month", "free: calendar 1000/month starting 15"},
		{"Europe/Berlin", "Europe/Paris"},
		{"calendar 10/month", "calendar 20/month"},
		{"  burst: ", "  other: {plans: {all: blocked}}\n  burst: "},
		{"free: 3", "free: 4"},
		{"slots: 50", "slots: 51"},
	} {
		if !strings.Contains(to, c[0]) {
			t.Fatal(c[0])
		}
		to = strings.Replace(to, c[0], c[1], 1)
	}
	const want = `limit "api": default: free -> gold
limit "api": plan free, day: fixed-window 1000/day -> fixed-window 1000/12h; starts fresh: at most the old and the new limit together
limit "api": plan free, minute: sliding-log 60/minute -> sliding-log 70/minute
limit "api": plan staff: unlimited -> blocked
limit "api": override of a key (line 11): gone, was plan gold, from 2026-01-01T00:00:00Z, until 2099-12-01T00:00:00Z, note "ticket 815"
limit "api": override of a key (line 11): new, plan gold, from 2026-01-01T00:00:00Z, until 2099-12-01T00:00:00Z, note "ticket 815"
limit "api": override of a prefix (line 12): minute: sliding-log 1000/minute -> minute: sliding-log 1000/hour; starts fresh: at most the old and the new limit together
limit "burst": plan all: token-bucket 10/second burst 20 -> token-bucket 5/second burst 20; starts fresh: at most the old and the new limit together
limit "month": plan berlin: calendar 1000/month in Europe/Berlin -> calendar 1000/month in Europe/Paris; starts fresh: at most the old and the new limit together
limit "month": plan free: calendar 1000/month -> calendar 1000/month starting 15; starts fresh: at most the old and the new limit together
limit "month": plan more: calendar 10/month -> calendar 20/month
limit "other": new, plans all
slots "ws": plan free: 3 -> 4
slots "ws": override of a key (line 20): 50 -> 51
`
	var got strings.Builder
	changes := Diff(parse(t, everything), parse(t, to))
	for _, c := range changes {
		got.WriteString(c.Text + "\n")
	}
	if got.String() != want {
		t.Errorf("%s\nis not\n%s", got.String(), want)
	}
	if changes[4].Key != "user-42" || changes[5].Key != "user-43" {
		t.Errorf("%+v", changes[4:6])
	}
	if c := Diff(parse(t, everything), parse(t, everything+"# more\n")); len(c) > 0 {
		t.Error(c)
	}
}

// A network is the same in another spelling.
func TestDiffOfNetworks(t *testing.T) {
	from := parse(t, override(`{"network": "2001:DB8::/48", "plan": "free"}, {"network": "2001:db8:1::/48", "plan": "free"}`))
	to := parse(t, override(`{"network": "2001:db8:0::/48", "plan": "free"}, {"network": "2001:DB8:1:0::/48", "policies": "blocked"}`))
	changes := Diff(from, to)
	if len(changes) != 1 || changes[0].Key != "2001:DB8:1:0::/48" || !strings.Contains(changes[0].Text, "plan free -> blocked") {
		t.Error(changes)
	}
}

// Whatever comes before the last line is a fault if the document is cut off there.
func TestEveryCutIsAFault(t *testing.T) {
	for i := range len(everything) - 1 {
		if _, err := Parse([]byte(everything[:i])); err == nil && !strings.HasSuffix(everything[:i], "\n...") {
			t.Errorf("the first %d bytes are a document", i)
		}
	}
}

// Documents that would take much time or memory do not.
func TestBombs(t *testing.T) {
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 [" + strings.Repeat("x, ", 8) + "x]\n")
	for i := range 9 {
		fmt.Fprintf(&laughs, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), ", "))
	}
	for name, text := range map[string]string{
		"laughs":   laughs.String() + "...\n",
		"brackets": strings.Repeat("[", MaxBytes-10) + "\n...",
		"dashes":   strings.Repeat("- ", MaxBytes/2-10) + "\n...",
		"items":    strings.Repeat("-\n", MaxBytes/2-10) + "...",
		"commas":   "[" + strings.Repeat("a,", MaxBytes/2-10) + "]\n...",
		"braces":   "a: " + strings.Repeat("{", 1<<20) + "\n...",
		"quotes":   "a: \"" + strings.Repeat("\\u0041", 1<<20) + "\"\n...",
		"names":    "limits: {" + strings.Repeat("? ", 1<<20) + "}\n...",
	} {
		begin := time.Now()
		_, err := Parse([]byte(text))
		if took := time.Since(begin); err == nil || took > 20*time.Second {
			t.Errorf("%s: %v: %v", name, took, err)
		} else {
			t.Logf("%s: %v: %.80v", name, took.Round(time.Millisecond), err)
		}
	}
}

// Whatever the text, it ends without a panic; each fault has a place; and a valid document has no changes to itself.
func FuzzParse(f *testing.F) {
	f.Add([]byte(everything))
	f.Add([]byte(free(`"token-bucket 10/second burst 5"`)))
	f.Add([]byte(override(`{"network": "203.0.113.0/28", "policies": {"a": "blocked"}}`)))
	f.Add([]byte("limits: {api: {default: free, plans: {free: sliding-log 5/minute, gold: sliding-log 600/minute}, overrides: [{key: ben, plan: gold}]}}\n...\n"))
	if more, err := os.ReadFile("testdata/large.yaml"); err == nil {
		f.Add(more)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse(text)
		if err != nil {
			var faults Faults
			if !errors.As(err, &faults) {
				t.Fatalf("%T", err)
			}
			sound(t, faults)
			return
		}
		d.Tables()
		if c := Diff(d, d); len(c) > 0 {
			t.Error(c)
		}
		for _, w := range d.Warnings {
			if w.Line < 1 || w.Column < 1 {
				t.Error(w)
			}
		}
	})
}

// A key or a prefix that is meant for addresses, but never is a key of one, or is of others, too, is a warning that
// says what to write; all else is none.
func TestOverridesThatNeverApply(t *testing.T) {
	for want, texts := range map[string][]string{
		"no key has a mask":           {"203.0.113.0/255.255.255.0", "10.0.0.0/255.0.0.0", "203.0.113.0/0.0.0.255", "2001:db8::/ffff:ffff::"},
		"no key has wildcards":        {"203.0.113.*", "203.0.*.*", "203.*.*.*", "203.0.113.x", "203.0.113.X", "203.0.*", "203.*", "2001:db8:*", "2001:db8::*"},
		"no key is a range":           {"203.0.113.1-203.0.113.9", "203.0.113.1 - 203.0.113.9", "203.0.113.1-9", "203.0.113.1–203.0.113.9", "203.0.113.1..203.0.113.9", "203.0.113.1 to 203.0.113.9", "2001:db8::1-2001:db8::9"},
		"no key is a list":            {"203.0.113.1,203.0.113.2", "203.0.113.1, 203.0.113.2", "203.0.113.1 203.0.113.2", "203.0.113.1;203.0.113.2", "203.0.113.0/28,203.0.113.32/28", "2001:db8::1,2001:db8::2"},
		"have no port":                {"203.0.113.7:80", "203.0.113.7:443", "[2001:db8::1]:443"},
		"have no brackets":            {"[2001:db8::1]", "[::1]"},
		"have no zone":                {"fe80::1%eth0", "fe80::1%25eth0", "fe80::1%1"},
		"have no leading zeros":       {"203.0.113.007", "203.000.113.7", "010.0.0.1", "203.0.113.007/32"},
		"a number in it is too large": {"203.0.113.256", "999.0.113.7"},
		"begins or ends with a blank": {" 203.0.113.7", "203.0.113.7 ", "203.0.113.7\t", "\u00a0user-42", "user-42\n", "203.0.113.0/28 "},
		"that is invisible":           {"203.0.113.7\u200b", "\ufeff203.0.113.7", "user\u00ad42", "\u2060anna", "an\u180ena"},
		"marks around an address":     {"'203.0.113.7'", `"203.0.113.7"`, "<203.0.113.7>", "`2001:db8::1`"},
		"no key with a tag":           {"ip:203.0.113.0/28", "ip:203.0.113.7/32", "ip:2001:db8::/48", "address:10.0.0.0/8", "ip:2001:DB8::/64"},
		"the beginning of an address": {"203.0.113", "203.0.113.", "203.0"},
		"with a slash":                {"203.0.113.7/", "2001:db8::1/"},
		"with a dot at its end":       {"203.0.113.7."},
		"":                            {"203.0.113.7", "anna", "user-42", "acme:1", "ip:203.0.113.7", "ip:2001:db8:1:2::/64", "2001:db8:1:2::/64", "Anna Smith", "a,b", "4711", "v1", "10/20", "a/b", "https://a.example/b", "x-1", "1-2", "cafe:1", "*", "user:*", "eu:10-20", "12:30", "1.5%", "東京", "tenant:7/8"},
	} {
		for _, text := range texts {
			checkWarnings(t, "key", text, want)
		}
	}
	for text, want := range map[string]string{
		"203.0.113.*": "no key has wildcards", "203.0.113.0/255.255.255.0": "no key has a mask", "203.0.113.1-203.0.113.9": "no key is a range",
		"203.0.113.007/32": "have no leading zeros", "203.0.113.0/28, 203.0.113.32/28": "no key is a list", "acme": "it is not a network",
	} {
		_, err := Parse([]byte(override(`{"network": "` + text + `", "plan": "free"}`)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("network %s: %v, not %s", text, err, want)
		}
	}
	for want, texts := range map[string][]string{
		"the prefix of more networks": {"203.0.11", "203.0.2", "203.1", "10.25", "2001:db8", "2001:db8:1", "fd00:1", "fe80:1"},
		"and the prefix of others":    {"203.0.113.1", "10.0.0.2"},
		"no key has wildcards":        {"203.0.113.*", "203.*", "2001:db8:*"},
		"no key has a mask":           {"203.0.113.0/255.255.255.0"},
		"have no port":                {"203.0.113.7:80"},
		"begins or ends with a blank": {" acme:", "203.0.113. "},
		"that is invisible":           {"acme:\u200b"},
		"no key with a tag":           {"ip:203.0.113.0/24"},
		"":                            {"203.0.113.", "203.", "203.0.", "203.0.113", "203.0", "203.0.26", "acme:", "acme", "user-", "2", "20", "2001:db8:", "2024:12", "cafe:1", "fd", "ip:203.0.113.", "v1.2", "user:7"},
	} {
		for _, text := range texts {
			checkWarnings(t, "prefix", text, want)
		}
	}
}

// checkWarnings checks the warning about an override for a key or a prefix, which must not repeat it.
func checkWarnings(t *testing.T, kind, text, want string) {
	t.Helper()
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Parse([]byte(override(`{"` + kind + `": ` + string(quoted) + `, "plan": "free"}`)))
	switch {
	case err != nil:
		t.Errorf("%s %q: %v", kind, text, err)
	case want == "" && len(d.Warnings) > 0:
		t.Errorf("%s %q: %v", kind, text, d.Warnings)
	case want != "" && (len(d.Warnings) != 1 || !strings.Contains(d.Warnings[0].Text, want)):
		t.Errorf("%s %q: %v, not %s", kind, text, d.Warnings, want)
	}
}
