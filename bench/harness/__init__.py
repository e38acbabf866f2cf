"""Speed of Tael beside its peers: engines, measurements, results, report.

    shell         running programs, their clocks and their memory
    toolbox       Python packages and peers that are built or installed once, into the cache folder
    synthetic     models with random weights in the shape of real ones
    models        the models that are compared
    tael, llama_cpp, ik_llama   the engines, each as commands and how to read what they print
    measurements  what is measured, as data: which engine with which settings, for which models
    runner        the order of runs: A B A B, best setting first
    results       JSON lines: written as they come, so that a run can go on where it was cut
    figures       medians, ratios and shares
    targets       what must hold
    outputs       do both engines compute the same?
    report, chart what people read
    quality       what windows and types of keys and values cost: the matrix of bench/quality
    kv_plan       bytes of keys and values of a model of 3 billion parameters
    quality_report, quality_chart   docs/kv-quality.md
"""
