package headgated

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/settle"
	"github.com/headgate/headgate/internal/step"
)

// The names of a configuration of Envoy's rate limit service, which are those of its reference; charge,
// failure and headgate are ours.
const (
	wordDomain         = "domain"
	wordDescriptors    = "descriptors"
	wordValue          = "value"
	wordRateLimit      = "rate_limit"
	wordUnit           = "unit"
	wordPerUnit        = "requests_per_unit"
	wordUnlimited      = "unlimited"
	wordName           = "name"
	wordReplaces       = "replaces"
	wordShadowMode     = "shadow_mode"
	wordQuotaMode      = "quota_mode"
	wordDetailedMetric = "detailed_metric"
	wordValueToMetric  = "value_to_metric"
	wordShareThreshold = "share_threshold"
	wordFailure        = "failure"
	wordHeadgate       = "headgate"
	wordMetadata       = "metadata"
	wordPolicy         = "policy"
)

// A domain has the limits for the descriptors of one domain.
type domain struct {
	name    string
	charge  string // chargeAll or chargeEach
	failure string // failOpen or failClosed; empty: as the store has it
	said    bool   // a text says one of these, and no other text may
	level
}

// A level has the descriptors that may stand at one depth.
type level struct {
	byText    map[string]*descriptor // key_value, or the key
	wildcards []*descriptor          // those whose text ends in an asterisk, in order
}

// A descriptor matches one entry of a descriptor of a request.
type descriptor struct {
	key           string
	text          string // key_value, or the key
	share         bool   // all that a wildcard matches is counted together
	valueToMetric bool
	rule          *rule // nil: none
	level
}

// wildcard reports whether it stands for all texts that begin as its own.
func (d *descriptor) wildcard() bool { return strings.HasSuffix(d.text, "*") }

// A rule is a limit for the descriptors that end with it.
type rule struct {
	id        string // the name of its limiter, which no other path has
	path      string // domain.key_value.key
	label     string // domain.key.key: it has no values, as clients see it
	name      string
	unlimited bool
	perUnit   uint32
	unit      pb.RateLimitResponse_RateLimit_Unit // UNKNOWN: the policy says
	replaces  []string
	shadow    bool
	quota     bool
	detailed  bool
	metadata  map[string]any // see [Config].ResponseMetadata; nil: none

	current *pb.RateLimitResponse_RateLimit // that statuses show, and share; nil: the policy says

	limiter *backend.Limiter // nil: unlimited, or the limit of the document
	limit   string           // of the document; empty: none
	place   limits.Fault     // of the descriptor, or of the limit's name
}

// shown returns the name of the rule's policy, which clients see.
func (r *rule) shown() string { return shown(cmp.Or(r.name, r.label)) }

// usage tells what the rule counts from what others count: the limit of the document, or the algorithm and the name of
// the policy. It is empty if the rule counts nothing.
func (r *rule) usage() string {
	switch {
	case r.limit != "":
		return r.limit
	case r.limiter == nil:
		return ""
	}
	ps, _ := r.limiter.Of("")
	if ps.Constant {
		return ""
	}
	return ps.List[0].Identity().String() + " " + ps.List[0].Name
}

// rules yields the rules of all domains.
func (d *document) rules() iter.Seq[*rule] {
	return func(yield func(*rule) bool) {
		for _, of := range d.domains {
			if !of.each(yield) {
				return
			}
		}
	}
}

// each yields the rules of a level and of those below, and reports whether to go on.
func (l *level) each(yield func(*rule) bool) bool {
	for _, d := range l.byText {
		if d.rule != nil && !yield(d.rule) || !d.each(yield) {
			return false
		}
	}
	return true
}

// window returns the time that a unit stands for, as the reference counts it.
func window(unit pb.RateLimitResponse_RateLimit_Unit) time.Duration {
	const day = 24 * time.Hour
	switch unit {
	case pb.RateLimitResponse_RateLimit_SECOND:
		return time.Second
	case pb.RateLimitResponse_RateLimit_MINUTE:
		return time.Minute
	case pb.RateLimitResponse_RateLimit_HOUR:
		return time.Hour
	case pb.RateLimitResponse_RateLimit_DAY:
		return day
	case pb.RateLimitResponse_RateLimit_WEEK:
		return 7 * day
	case pb.RateLimitResponse_RateLimit_MONTH:
		return 30 * day
	case pb.RateLimitResponse_RateLimit_YEAR:
		return 365 * day
	}
	return 0
}

// limiterName returns the name of a limiter, which no other parts have. Texts of descriptors may be longer than names
// may be, so it is a hash.
func limiterName(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return "rls/" + hex.EncodeToString(h.Sum(nil)[:16])
}

// shown returns a text as the name of a policy, which clients see.
func shown(text string) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	if len(clean) > 64 {
		clean = clean[:61] + "..."
	}
	if clean == "" {
		return "limit"
	}
	return clean
}

// perUnitOf returns the policy of a number of requests in a unit of time, of which there are several: the
// reference counts in windows of the clock.
func perUnitOf(n uint32, unit pb.RateLimitResponse_RateLimit_Unit, several uint32, name string) backend.Policy {
	if n == 0 {
		return backend.Policy{Name: name, Numbers: step.Numbers{Algorithm: step.Constant}}
	}
	per := window(unit) * time.Duration(several)
	return backend.Policy{Name: name, Numbers: step.Numbers{Algorithm: step.FixedWindow, Limit: int64(n), Period: per.Microseconds()}}
}

// newLimiter returns a limiter of one policy.
func newLimiter(s *backend.Store, name string, p backend.Policy) (*backend.Limiter, error) {
	var faults []error
	ps := backend.Prepare(name, []backend.Policy{p}, func(_ int, err error) { faults = append(faults, err) })
	err := errors.Join(faults...)
	if err == nil {
		err = s.Rates.Prepare(ps.List)
	}
	return backend.NewShared(s, name).Constant(ps), err
}

// How a domain charges the descriptors of a request.
const (
	chargeAll  = "all"
	chargeEach = "each"
)

// Who decides for a domain without Redis.
const (
	failLocal  = "local"
	failOpen   = "open"
	failClosed = "closed"
)

// rlsDefaults are what a [Config] says for domains.
type rlsDefaults struct {
	merge  bool // the same domain may be in several files
	charge string
	fails  redisstore.Failure // of the store
	redis  bool
}

func (c *Config) rls() rlsDefaults {
	d := rlsDefaults{merge: c.MergeDomains, charge: chargeAll, fails: c.Failure, redis: c.Redis != ""}
	if c.ChargeEach {
		d.charge = chargeEach
	}
	return d
}

// A rulesReader reads configurations.
type rulesReader struct {
	*reader
	rlsDefaults

	store   *backend.Store
	domains map[string]*domain
	named   []*rule // with limits of the document
}

// FileError are the faults of a file of [Config].EnvoyConfig.
type FileError struct {
	File   string
	Faults limits.Faults
}

// Error has a line for each fault, as compilers print theirs.
func (f *FileError) Error() string {
	var lines []string
	for _, fault := range f.Faults {
		plain := *fault
		plain.Line = 0
		lines = append(lines, fmt.Sprintf("%s:%d:%d: %s", f.File, fault.Line, fault.Column, plain.Error()))
	}
	return strings.Join(lines, "\n")
}

// readRules reads the domains of the document, whose limiters are of the store.
func (d *document) readRules(of *limits.Node, store *backend.Store, defaults rlsDefaults) limits.Faults {
	d.domains = make(map[string]*domain)
	r := &rulesReader{reader: &reader{}, rlsDefaults: defaults, store: store, domains: d.domains}
	r.items(of, wordRLS, r.domain)
	d.named = r.named
	return r.faults
}

// addFiles adds the domains of files. The limits that they name are those of the document, if they are known.
func (d *document) addFiles(files []settle.File, known bool, store *backend.Store, defaults rlsDefaults) error {
	var all []error
	for _, f := range files {
		r := &rulesReader{reader: &reader{}, rlsDefaults: defaults, store: store, domains: d.domains}
		root, err := decode(f.Text)
		var faults limits.Faults
		switch {
		case errors.As(err, &faults):
			r.faults = faults
		case err != nil:
			r.faults = limits.Faults{{Err: err}}
		default:
			r.domain(&root, "")
		}
		for _, to := range r.named {
			if known && d.tables[to.limit] == nil {
				r.faults = append(r.faults, missingAt(to.place))
			}
		}
		if d.named = append(d.named, r.named...); len(r.faults) > 0 {
			all = append(all, &FileError{f.Name, r.faults})
		}
	}
	return errors.Join(all...)
}

// under returns the path of a part of what is at a path.
func under(path, word string) string {
	if path == "" {
		return word
	}
	return path + "." + word
}

// domain reads the configuration of a domain.
func (r *rulesReader) domain(n *limits.Node, path string) {
	before := len(r.faults)
	fields := r.fields(n, path, wordDomain, wordDescriptors, wordCharge, wordFailure)
	if len(r.faults) > before {
		return
	}
	name := ""
	if v := fields[wordDomain]; v != nil {
		name = r.scalar(v, under(path, wordDomain))
	}
	if name == "" {
		r.fault(n, path, "it has no %s, or an empty one", wordDomain)
		return
	}
	d := r.domains[name]
	switch {
	case d != nil && !r.merge:
		r.fault(n, path, "the domain %q is there twice: with -merge-domains, the descriptors of both count", name)
		return
	case d == nil:
		d = &domain{name: name, charge: r.rlsDefaults.charge}
		r.domains[name] = d
	}
	if charge, failure := fields[wordCharge], fields[wordFailure]; charge != nil || failure != nil {
		if d.said {
			r.fault(n, path, "the %s or the %s of this domain is said elsewhere too", wordCharge, wordFailure)
			return
		}
		d.said = true
		if charge != nil {
			d.charge = r.oneOf(charge, under(path, wordCharge), chargeAll, chargeEach)
		}
		if failure != nil {
			d.failure = r.failure(failure, under(path, wordFailure))
		}
	}
	r.level(fields[wordDescriptors], under(path, wordDescriptors), &d.level, &rule{id: limiterName(name), path: name, label: name})
}

// failure reads who decides for a domain without Redis. Only a store that decides by its local counts
// can do so for one domain.
func (r *rulesReader) failure(n *limits.Node, path string) string {
	text := r.oneOf(n, path, failLocal, failOpen, failClosed)
	if text != failLocal {
		return text
	}
	if r.redis && r.fails != redisstore.FailLocal {
		r.fault(n, path, "that needs the service's own -failure to be local")
	}
	return ""
}

// oneOf returns a word that must be among these.
func (r *rulesReader) oneOf(n *limits.Node, path string, words ...string) string {
	text, ok := r.text(n, path)
	if ok && !slices.Contains(words, text) {
		r.fault(n, path, "it is none of %s", strings.Join(words, ", "))
		return ""
	}
	return text
}

// scalar returns the text of a value that is neither a list nor a map, as the reference takes numbers for
// texts.
func (r *rulesReader) scalar(n *limits.Node, path string) string {
	switch n.Kind {
	case limits.List, limits.Map:
		r.fault(n, path, "it is %v, not a string", n.Kind)
		return ""
	case limits.Null:
		return ""
	}
	return n.Text
}

// flag reads true and false, and the words that stand for them in YAML 1.1, as the reference takes them.
func (r *rulesReader) flag(n *limits.Node, path string) bool {
	if n == nil || n.Kind == limits.Null {
		return false
	}
	if n.Kind != limits.Bool {
		r.fault(n, path, "it is %v, not true or false", n.Kind)
	}
	return slices.Contains([]string{"true", "yes", "on", "y"}, strings.ToLower(n.Text))
}

// level reads a list of descriptors.
func (r *rulesReader) level(n *limits.Node, path string, into *level, parent *rule) {
	if n != nil && n.Kind == limits.Null {
		return
	}
	r.items(n, path, func(n *limits.Node, path string) { r.descriptor(n, path, into, parent) })
}

func (r *rulesReader) descriptor(n *limits.Node, path string, into *level, parent *rule) {
	fields := r.fields(n, path, wordKey, wordValue, wordRateLimit, wordDescriptors, wordShadowMode, wordQuotaMode, wordDetailedMetric,
		wordValueToMetric, wordShareThreshold, wordHeadgate, wordMetadata)
	key := ""
	if v := fields[wordKey]; v != nil {
		key = r.scalar(v, path+"."+wordKey)
	}
	if key == "" {
		r.fault(n, path, "it has no %s, or an empty one", wordKey)
		return
	}
	d := &descriptor{key: key, text: key}
	if v := fields[wordValue]; v != nil {
		if value := r.scalar(v, path+"."+wordValue); value != "" {
			d.text += "_" + value
		}
	}
	r.asterisks(fields, path, d)
	own := &rule{id: limiterName(parent.id, d.text), path: parent.path + "." + d.text, label: parent.label + "." + key}
	own.place = limits.Fault{Line: n.Line, Column: n.Column, Path: path}
	if into.byText[d.text] != nil {
		r.fault(n, path, "the descriptor is there twice")
		return
	}
	d.share = r.flag(fields[wordShareThreshold], path+"."+wordShareThreshold)
	d.valueToMetric = r.flag(fields[wordValueToMetric], path+"."+wordValueToMetric)
	if d.share && !d.wildcard() {
		r.fault(fields[wordShareThreshold], path+"."+wordShareThreshold, "it is for values that end in an asterisk")
	}
	d.rule = r.rule(fields, own)
	r.level(fields[wordDescriptors], path+"."+wordDescriptors, &d.level, own)
	if into.byText == nil {
		into.byText = make(map[string]*descriptor)
	}
	into.byText[d.text] = d
	if d.wildcard() {
		into.wildcards = append(into.wildcards, d)
	}
}

// asterisks refuses a descriptor whose text has an asterisk before its end. It would match only that asterisk, and
// newer versions of the reference match any text there.
func (r *rulesReader) asterisks(fields map[string]*limits.Node, path string, d *descriptor) {
	switch i := strings.Index(d.text, "*"); {
	case i < 0 || i == len(d.text)-1:
	case i < len(d.key):
		r.fault(fields[wordKey], path+"."+wordKey, "an asterisk stands for any text only as the last character, and in a key only if there is no %s", wordValue)
	default:
		r.fault(fields[wordValue], path+"."+wordValue, "an asterisk stands for any text only as the last character")
	}
}

// rule reads the limit of a descriptor, if it has one.
func (r *rulesReader) rule(fields map[string]*limits.Node, own *rule) *rule {
	path := own.place.Path
	to := &rule{
		id: own.id, path: own.path, label: own.label, place: own.place,
		shadow: r.flag(fields[wordShadowMode], path+"."+wordShadowMode), quota: r.flag(fields[wordQuotaMode], path+"."+wordQuotaMode),
		detailed: r.flag(fields[wordDetailedMetric], path+"."+wordDetailedMetric), metadata: r.metadata(fields[wordMetadata], path+"."+wordMetadata),
	}
	rate, ours := fields[wordRateLimit], fields[wordHeadgate]
	if rate != nil && rate.Kind == limits.Null {
		rate = nil
	}
	switch {
	case rate == nil && ours == nil:
		return nil
	case rate != nil && !r.rate(rate, path+"."+wordRateLimit, to, ours != nil):
		return nil
	case ours != nil && !r.ours(ours, path+"."+wordHeadgate, to):
		return nil
	case ours == nil && !to.unlimited:
		to.current = &pb.RateLimitResponse_RateLimit{RequestsPerUnit: to.perUnit, Unit: to.unit, Name: to.name}
		to.limiter = r.limiter(rate, path, own.id, perUnitOf(to.perUnit, to.unit, 1, to.shown()))
	}
	return to
}

// limiter returns the limiter of a rule.
func (r *rulesReader) limiter(n *limits.Node, path, id string, p backend.Policy) *backend.Limiter {
	l, err := newLimiter(r.store, id, p)
	if err != nil {
		r.fault(n, path, "%w", err)
	}
	return l
}

// rate reads a rate_limit. With a headgate block beside it, it needs no unit.
func (r *rulesReader) rate(n *limits.Node, path string, to *rule, ours bool) bool {
	before := len(r.faults)
	fields := r.fields(n, path, wordUnit, wordPerUnit, wordUnlimited, wordName, wordReplaces)
	to.unlimited = r.flag(fields[wordUnlimited], path+"."+wordUnlimited)
	if v := fields[wordName]; v != nil {
		to.name = r.scalar(v, path+"."+wordName)
	}
	if v := fields[wordPerUnit]; v != nil && v.Kind != limits.Null {
		if n := r.number(v, path+"."+wordPerUnit, 0); n <= math.MaxUint32 {
			to.perUnit = uint32(n)
		} else {
			r.fault(v, path+"."+wordPerUnit, "it must be a whole number from 0 to 2^32-1")
		}
	}
	unit := ""
	if v := fields[wordUnit]; v != nil {
		unit = r.scalar(v, path+"."+wordUnit)
	}
	to.unit = pb.RateLimitResponse_RateLimit_Unit(pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(unit)])
	switch known := window(to.unit) > 0; {
	case to.unlimited && (known || ours):
		r.fault(n, path, "what is unlimited has no %s and no %s", wordUnit, wordHeadgate)
	case !to.unlimited && !ours && !known:
		r.fault(n, path, "it has no %s: one of second, minute, hour, day, week, month and year", wordUnit)
	case ours && (unit != "" || to.perUnit > 0):
		r.fault(n, path, "the %s is that of %s: remove these", wordRateLimit, wordHeadgate)
	}
	r.items(fields[wordReplaces], path+"."+wordReplaces, func(n *limits.Node, path string) {
		name := ""
		if v := r.fields(n, path, wordName)[wordName]; v != nil {
			name = r.scalar(v, path)
		}
		switch name {
		case "":
			r.fault(n, path, "it has no %s", wordName)
		case to.name:
			r.fault(n, path, "it is the name of this limit itself")
		}
		to.replaces = append(to.replaces, name)
	})
	return len(r.faults) == before
}

// ours reads a headgate block: another policy, or a limit of the document.
func (r *rulesReader) ours(n *limits.Node, path string, to *rule) bool {
	before := len(r.faults)
	fields := r.fields(n, path, wordPolicy, wordLimit)
	policy, limit := fields[wordPolicy], fields[wordLimit]
	switch {
	case n.Kind != limits.Map:
	case (policy == nil) == (limit == nil):
		r.fault(n, path, "it has either a %s or a %s", wordPolicy, wordLimit)
	case limit != nil:
		to.limit, _ = r.text(limit, path+"."+wordLimit)
		to.place = limits.Fault{Line: limit.Line, Column: limit.Column, Path: path + "." + wordLimit}
		r.named = append(r.named, to)
	default:
		text, ok := r.text(policy, path+"."+wordPolicy)
		if !ok {
			break
		}
		numbers, err := step.Parse(text)
		if err != nil {
			r.fault(policy, path+"."+wordPolicy, "%w", err)
			break
		}
		to.limiter = r.limiter(policy, path, to.id, backend.Policy{Name: to.shown(), Numbers: numbers})
	}
	return len(r.faults) == before
}
