SELECT COUNT(*), SUM(x.n) FROM LATERAL (SELECT COUNT(*) AS n FROM visits v WHERE v.patient_id =
    p.patient_id) x