; Homes. What is the caller's and has its home on the host is there at all times: at first, and after every step
; whose guard holds, so giving it back on the device loses nothing. What an update ends is so until then: its host
; copy goes by an update on the host, or after it is stale. A plan that ends has every home there,
; with its newest contents, and not on the device. Induction over the steps.
; Used: validity (an offload of such a home is told as FB0859), semantics.md (the theorem about values).

(push 1) ; at first it is on the host, and not on the device
(declare-const kind Int)
(assert (! (or (= kind kind.home) (= kind kind.old_home)) :named home))
(assert (not (and (start.hosted kind) (not (start.alive kind)))))
(check-sat)
(pop 1)

(push 1) ; step: a hostfree takes away what is on the host, and no home of the caller's
(declare-const flying Bool) (declare-const hosted Bool) (declare-const kind Int) (declare-const aged Bool)
(assert (! (or (= kind kind.home) (= kind kind.old_home)) :named home))
(assert (! (not aged) :named not_updated))
(assert (! (hostfree.ok flying hosted kind aged) :named guard))
(assert (not hostfree.hosted))
(check-sat)
(pop 1)

(push 1) ; so an offload of it is never right
(declare-const alive Bool) (declare-const kind Int) (declare-const flying Bool) (declare-const hosted Bool)
(assert (! hosted :named invariant))
(assert (offload.ok alive kind flying hosted))
(check-sat)
(pop 1)

(push 1) ; the end
(declare-const kept Bool) (declare-const alive Bool) (declare-const kind Int)
(declare-const flying Bool) (declare-const hosted Bool) (declare-const aged Bool)
(assert (! (or (= kind kind.home) (= kind kind.home_grad)) :named home))
(assert (! (not kept) :named not_wanted_on_the_device))
(assert (! (finish.ok kept alive kind flying hosted aged) :named guard))
(assert (not (and hosted (not aged) (not flying) (not alive))))
(check-sat)
(pop 1)
