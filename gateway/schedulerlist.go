package gateway

import (
	"cmp"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
)

// schedulerQuery is what a client of jupyter-scheduler's routes wants of a list. A field that is zero bounds nothing.
type schedulerQuery struct {
	name, definition, status string // the name is the beginning of one
	tags                     []string
	created, started         int64 // in milliseconds since 1970: not before
	order                    []schedulerOrder
	begin, most              int // of the page
}

// schedulerOrder is one key by which a list is sorted.
type schedulerOrder struct {
	key        string
	descending bool
}

// schedulerKeys is what jobs and definitions are filtered and sorted by.
type schedulerKeys struct {
	name, state, status, definition string
	tags                            []string
	created, started, ended         time.Time
}

// schedulerPage is how many jobs or definitions an answer has unless the client says otherwise.
const schedulerPage = 1000

// sortedBy reads one parameter sort_by, as name, asc(name) or desc(create_time).
var sortedBy = regexp.MustCompile(`^(?i:(asc|desc))?\(?([^)]+)\)?`)

// maxOrders bounds the keys by which a list is sorted: there are five.
const maxOrders = 5

// needList returns what a request for a list needs.
func (g *Gateway) needList(r *call) (*jobs.Manager, schedulerQuery, error) {
	manager, err := g.needJobs()
	if err != nil {
		return nil, schedulerQuery{}, err
	}
	query, err := schedulerQueryOf(r)
	return manager, query, err
}

// schedulerQueryOf reads the query of a list.
func schedulerQueryOf(r *call) (q schedulerQuery, err error) {
	values := r.URL.Query()
	q.name, q.definition, q.tags = values.Get("name"), values.Get("job_definition_id"), values["tags"]
	if text := values.Get("status"); text != "" {
		if q.status, err = statusOf(text); err != nil {
			return q, err
		}
	}
	for name, to := range map[string]*int64{"create_time": &q.created, "start_time": &q.started} {
		if text := values.Get(name); text != "" {
			if *to, err = strconv.ParseInt(text, 10, 64); err != nil {
				return q, refuse(http.StatusBadRequest, "The parameter %s is not a number of milliseconds.", name)
			}
		}
	}
	q.most = schedulerPage
	if text := values.Get("max_items"); text != "" {
		if q.most, err = strconv.Atoi(text); err != nil || q.most < 0 {
			return q, refuse(http.StatusBadRequest, "The parameter max_items is not a number from 0.")
		}
	}
	if text := values.Get("next_token"); text != "" {
		if q.begin, err = strconv.Atoi(text); err != nil || q.begin < 0 {
			return q, refuse(http.StatusBadRequest, "The parameter next_token is not one of an earlier answer.")
		}
	}
	if len(values["sort_by"]) > maxOrders {
		return q, refuse(http.StatusBadRequest, "The parameter sort_by is given more than %d times.", maxOrders)
	}
	for _, text := range values["sort_by"] {
		m := sortedBy.FindStringSubmatch(text)
		if m == nil {
			return q, refuse(http.StatusBadRequest, "The parameter sort_by is not of a form like desc(create_time).")
		}
		q.order = append(q.order, schedulerOrder{m[2], strings.EqualFold(m[1], "desc")})
	}
	if len(q.order) == 0 {
		q.order = []schedulerOrder{{"create_time", true}}
	}
	return q, nil
}

// statusOf reads a status in any case.
func statusOf(text string) (string, error) {
	status := strings.ToUpper(text)
	if !slices.Contains(schedulerStatuses, status) {
		return "", refuse(http.StatusBadRequest, "The parameter status is not %s.", strings.Join(schedulerStatuses, ", "))
	}
	return status, nil
}

// wants reports whether a list has a job or a definition.
func (q *schedulerQuery) wants(k *schedulerKeys) bool {
	for _, tag := range q.tags {
		if !slices.Contains(k.tags, tag) {
			return false
		}
	}
	return strings.HasPrefix(k.name, q.name) && (q.definition == "" || k.definition == q.definition) &&
		(q.status == "" || k.status == q.status) && (q.created == 0 || k.created.UnixMilli() >= q.created) &&
		(q.started == 0 || millisecondsOf(k.started) >= q.started)
}

// compare orders two jobs or definitions. An unknown key is create_time.
func (q *schedulerQuery) compare(a, b *schedulerKeys) int {
	for _, o := range q.order {
		var c int
		switch o.key {
		case "name":
			c = cmp.Compare(a.name, b.name)
		case "status":
			c = cmp.Compare(a.state, b.state)
		case "start_time":
			c = a.started.Compare(b.started)
		case "end_time":
			c = a.ended.Compare(b.ended)
		default:
			c = a.created.Compare(b.created)
		}
		if o.descending {
			c = -c
		}
		if c != 0 {
			return c
		}
	}
	return 0
}

// answerOne answers with a job or a definition.
func answerOne[T, Shown any](w http.ResponseWriter, one *T, describe func(*T) (Shown, error)) error {
	shown, err := describe(one)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, shown)
}

// answerList answers with a page of a list of jobs or definitions, the length of the list, and the token of the next
// page.
func answerList[T, Shown any](
	w http.ResponseWriter, q schedulerQuery, member string, all []T, keysOf func(*T) schedulerKeys,
	describe func(*T) (Shown, error),
) error {
	type item struct {
		keys schedulerKeys
		of   *T
	}
	var found []item
	for i := range all {
		if keys := keysOf(&all[i]); q.wants(&keys) {
			found = append(found, item{keys, &all[i]})
		}
	}
	slices.SortStableFunc(found, func(a, b item) int { return q.compare(&a.keys, &b.keys) })
	begin := min(q.begin, len(found))
	end := begin + min(q.most, len(found)-begin)
	page := []Shown{}
	for _, i := range found[begin:end] {
		shown, err := describe(i.of)
		if err != nil {
			return err
		}
		page = append(page, shown)
	}
	answer := map[string]any{member: page, "total_count": len(found)}
	if begin < end && end < len(found) {
		answer["next_token"] = strconv.Itoa(end)
	}
	return writeJSON(w, http.StatusOK, answer)
}
